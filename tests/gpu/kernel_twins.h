// The cases that compare every CUDA kernel with its CPU twin, bit by bit (twins_*.cc). They are compiled into two
// programs, which provide the memory and the launcher: test_gpu_kernels, on a device, and test_cuda_emulated, where
// tests/emulation runs the kernels' source on the CPU.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda_stream.h"
#include "kernels/tree_sum.h"

namespace tributary::twins {

// ---- Brought by the program; throw std::runtime_error with the reason ----

void* device_allocate(std::size_t bytes);
void device_free(void* at) noexcept;
void copy_to_device(void* to, const void* from, std::size_t bytes);
// After all kernels so far.
void copy_from_device(void* to, const void* from, std::size_t bytes);
kernels::cuda::Stream stream();
// Every case is run once for each way, after use_way(). On a device there is one.
int ways();
void use_way(int way);
// Whether arrays of millions of elements take no time.
bool fast();

// ---- Memory ----

// An array on the device with a guard behind it: no kernel may write there.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : count_(values.size()) {
    std::vector<std::byte> all(bytes() + kGuard, kPattern);
    if (count_ > 0) std::memcpy(all.data(), values.data(), bytes());
    at_ = static_cast<T*>(device_allocate(all.size()));
    copy_to_device(at_, all.data(), all.size());
  }
  // Filled with a pattern, so that what a kernel forgets shows.
  explicit DeviceArray(std::size_t count) : DeviceArray(pattern(count)) {}
  ~DeviceArray() { device_free(at_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return at_; }

  std::vector<T> read() const {
    std::vector<std::byte> all(bytes() + kGuard);
    copy_from_device(all.data(), at_, all.size());
    CHECK_MESSAGE(std::all_of(all.begin() + static_cast<std::ptrdiff_t>(bytes()), all.end(),
                              [](std::byte byte) { return byte == kPattern; }),
                  "written behind the array's end");
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), all.data(), bytes());
    return values;
  }

  static std::vector<T> pattern(std::size_t count) {
    std::vector<T> values(count);
    if (count > 0) std::memset(static_cast<void*>(values.data()), static_cast<int>(kPattern), count * sizeof(T));
    return values;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kPattern{0xa5};
  std::size_t bytes() const { return count_ * sizeof(T); }

  std::size_t count_;
  T* at_ = nullptr;
};

// Inputs of a sum, on both sides.
struct Inputs {
  std::vector<std::vector<float>> host;
  std::vector<std::unique_ptr<DeviceArray<float>>> device;
  std::vector<const float*> at_host, at_device;

  explicit Inputs(std::vector<std::vector<float>> arrays) : host(std::move(arrays)) {
    for (const auto& array : host) {
      device.push_back(std::make_unique<DeviceArray<float>>(array));
      at_host.push_back(array.data());
      at_device.push_back(device.back()->get());
    }
  }
  kernels::cuda::SumInputs fused() const { return kernels::cuda::SumInputs(at_device); }
  std::vector<float> sum() const {
    std::vector<float> out(host[0].size());
    kernels::tree_sum(at_host, out.size(), out.data());
    return out;
  }
};

// ---- Values ----

enum class Values {
  kGradients,  // of normal spread about 0.01
  kWild,       // magnitudes from 2^-30 to 2^30, so that a sum in another order has other bits
  kTies,       // few different magnitudes, both signs, both zeros
  kDenormal,   // below 2^-120: denormal, or so in the middle of a formula
  kHuge,       // up to the largest float
  kSpecial,    // gradients, with NaNs of all kinds, infinities and denormals here and there, long stretches without
};
inline constexpr Values kAllValues[] = {Values::kGradients, Values::kWild, Values::kTies,
                                        Values::kDenormal,  Values::kHuge, Values::kSpecial};
inline constexpr Values kFiniteValues[] = {Values::kGradients, Values::kWild, Values::kTies, Values::kDenormal};

std::vector<float> make_values(Values kind, std::size_t count, std::uint32_t seed);
std::vector<std::vector<float>> make_arrays(Values kind, std::size_t arrays, std::size_t count, std::uint32_t seed);

// Odd tails around vectors, blocks of 256, tiles of 4096 and groups of 65536; one and many tiles.
const std::vector<std::size_t>& sizes();

// ---- Comparison ----

enum class Nan { kSameBits, kAnyNan };  // the latter where a NaN came out of arithmetic (kernels/cuda_stream.h)

inline bool equal(float a, float b, Nan nan) {
  if (nan == Nan::kAnyNan && std::isnan(a) && std::isnan(b)) return true;
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
template <class T>
bool equal(T a, T b, Nan) {
  return a == b;
}

// One assertion for all elements, which names the first that differs.
template <class T>
void check_equal(const char* what, const std::vector<T>& device, const std::vector<T>& host, Nan nan = Nan::kAnyNan) {
  CAPTURE(what);
  REQUIRE(device.size() == host.size());
  std::size_t i = 0;
  while (i < host.size() && equal(device[i], host[i], nan)) ++i;
  if (i == host.size()) {
    CHECK(true);
    return;
  }
  CAPTURE(i);
  CHECK(device[i] == host[i]);
  if constexpr (sizeof(T) == 4) CHECK(std::bit_cast<std::uint32_t>(device[i]) == std::bit_cast<std::uint32_t>(host[i]));
}

// Calls body for each way of running.
template <class Body>
void in_all_ways(const Body& body) {
  for (int way = 0; way < ways(); ++way) {
    CAPTURE(way);
    use_way(way);
    body();
  }
}

// For cases of many combinations: one way for each, in turns.
inline void use_way_of(std::size_t combination) {
  use_way(static_cast<int>(combination % static_cast<std::size_t>(ways())));
}

}  // namespace tributary::twins

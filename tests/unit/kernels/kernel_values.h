// Values that kernels are tested with, and the comparison of bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace tributary::testing {

inline std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// The same bits, or both NaN: which NaN an operation gives is the processor's choice.
inline bool same(float a, float b) {
  return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b));
}

inline std::size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<std::size_t>::max();
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += !same(a[i], b[i]);
  return count;
}

enum class Values {
  kGradients,  // normal spread of 0.01
  kWild,       // magnitudes from 2^-20 to 2^20, so that sums in another order have other bits
  kTiny,       // denormals and zeros of both signs
  kHuge,       // up to 2^126.5: sums of two are finite, sums of a block need not be
  kEqual,      // few different magnitudes, many zeros of both signs
  kAnyBits,    // any pattern: NaN, infinities and all
};
inline constexpr Values kAllValues[] = {Values::kGradients, Values::kWild,  Values::kTiny,
                                        Values::kHuge,      Values::kEqual, Values::kAnyBits};
inline constexpr Values kFiniteValues[] = {Values::kGradients, Values::kWild, Values::kTiny, Values::kHuge,
                                           Values::kEqual};

inline std::vector<float> make_values(Values kind, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.01f);
  std::vector<float> values(count);
  for (float& v : values) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    const float sign = bits & 1 ? -1.0f : 1.0f;
    switch (kind) {
      case Values::kGradients:
        v = normal(random);
        break;
      case Values::kWild:
        v = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)), static_cast<int>(random() % 41) - 51);
        break;
      case Values::kTiny:
        v = bits % 8 == 0 ? sign * 0.0f : std::bit_cast<float>(bits & 0x80ffffffu);
        break;
      case Values::kHuge:
        v = sign * std::ldexp(1.0f + static_cast<float>(bits >> 9) * 0x1p-24f, 125 - static_cast<int>(random() % 3));
        break;
      case Values::kEqual:
        v = sign * static_cast<float>((bits >> 8) % 4);
        break;
      case Values::kAnyBits:
        v = std::bit_cast<float>(bits);
        break;
    }
  }
  return values;
}

// kernels/lane_sum.h in so many words.
template <class Number>
Number lane_sum(const std::vector<Number>& terms) {
  std::vector<Number> lanes(1024, Number{0});
  for (std::size_t i = 0; i < terms.size(); ++i) lanes[i % 1024] += terms[i];
  while (lanes.size() > 1) {
    const std::size_t half = lanes.size() / 2;
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    lanes.resize(half);
  }
  return lanes[0];
}

// At, around and far from the widths of vectors and blocks (256, 1024, 4096).
inline std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (std::size_t n = 1; n <= 40; ++n) all.push_back(n);
  for (std::size_t around : {64u, 128u, 255u, 512u, 1024u, 2048u, 4096u, 8192u}) {
    for (std::size_t d : {0u, 1u, 2u, 3u, 9u}) all.push_back(around - 1 + d);
  }
  all.push_back(20000);
  all.push_back(65537);
  return all;
}

// Bytes at an address of any alignment, that end where their memory ends (so that a sanitizer sees a read behind them).
class Unaligned {
 public:
  Unaligned(const void* from, std::size_t bytes, std::size_t offset) : bytes_(offset + bytes), offset_(offset) {
    if (bytes > 0) std::memcpy(bytes_.data() + offset, from, bytes);
  }
  std::byte* data() { return bytes_.data() + offset_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t offset_;
};

}  // namespace tributary::testing

// Copies that landed, and that have not, on the emulation of the CUDA runtime.
#include <doctest/doctest.h>

#include <array>
#include <cstring>

#include "kernels/cuda_copy.h"
#include "tests/emulation/runtime/emulated_runtime.h"

namespace tributary {
namespace {

constexpr std::size_t kBytes = 64;
using Bytes = std::array<char, kBytes>;

// Returns the bytes that a stream of its own reads from device memory that `upload` has written.
template <class Upload>
Bytes read_after(Upload upload) {
  void *device = nullptr, *pinned = nullptr;
  cudaStream_t stream = nullptr;
  REQUIRE(cudaMalloc(&device, kBytes) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  Bytes values;
  values.fill('n');
  REQUIRE(upload(device, values.data()) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(pinned, device, kBytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  Bytes read;
  std::memcpy(read.data(), pinned, kBytes);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
  REQUIRE(cudaFree(device) == cudaSuccess);
  return read;
}

template <class Upload>
int stale_reads(Upload upload) {
  Bytes expected;
  expected.fill('n');
  int stale = 0;
  for (std::uint32_t seed = 2; seed < 52; ++seed) {
    emulation::start_runtime({.seed = seed});
    stale += read_after(upload) == expected ? 0 : 1;
    CHECK(emulation::runtime_counts().alive == 0);
  }
  return stale;
}

TEST_CASE("what cudaMemcpy uploads from pageable memory may come after what a stream of its own reads") {
  CHECK(stale_reads([](void* to, const void* from) { return cudaMemcpy(to, from, kBytes, cudaMemcpyHostToDevice); }) >
        0);
}

TEST_CASE("a copy that is waited for has landed, and what comes back is there") {
  CHECK(stale_reads([](void* to, const void* from) { return kernels::cuda::copy_and_wait(to, from, kBytes); }) == 0);
  emulation::start_runtime({});
  void* device = nullptr;
  REQUIRE(cudaMalloc(&device, kBytes) == cudaSuccess);
  Bytes sent, back{};
  sent.fill('s');
  REQUIRE(kernels::cuda::copy_and_wait(device, sent.data(), kBytes) == cudaSuccess);
  REQUIRE(kernels::cuda::copy_and_wait(back.data(), device, kBytes) == cudaSuccess);
  CHECK(back == sent);
  REQUIRE(cudaFree(device) == cudaSuccess);
}

}  // namespace
}  // namespace tributary

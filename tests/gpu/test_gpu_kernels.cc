// The shared cases (kernel_twins.h) on the first device of this machine. Without one, every case fails and says why.
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda_copy.h"
#include "tests/gpu/kernel_twins.h"

namespace tributary::twins {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

void require_device() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "test_gpu_kernels needs a CUDA device and driver");
  if (devices == 0) throw std::runtime_error("test_gpu_kernels needs a CUDA device; this machine has none");
}

}  // namespace

void* device_allocate(std::size_t bytes) {
  void* at = nullptr;
  check(cudaMalloc(&at, bytes), "cudaMalloc");
  return at;
}

void device_free(void* at) noexcept {
  (void)cudaFree(at);
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  check(kernels::cuda::copy_and_wait(to, from, bytes), "copying to the device");
}

void copy_from_device(void* to, const void* from, std::size_t bytes) {
  check(cudaGetLastError(), "a launch");
  check(cudaStreamSynchronize(stream()), "a kernel");
  check(kernels::cuda::copy_and_wait(to, from, bytes), "copying from the device");
}

kernels::cuda::Stream stream() {
  struct Owner {
    cudaStream_t stream = nullptr;
    Owner() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
  };
  static const Owner owner;  // until the process ends
  return owner.stream;
}

int ways() {
  require_device();
  return 1;
}

void use_way(int) {
  require_device();
}

bool fast() {
  return true;
}

}  // namespace tributary::twins

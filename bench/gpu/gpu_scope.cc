#include "bench/gpu/gpu_scope.h"

#include <utility>

#include "common/devices/cuda_error.h"

namespace tributary::bench {

GpuScope::~GpuScope() {
  for (const cudaStream_t stream : streams_) {
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
  for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  for (void* memory : registered_) (void)cudaHostUnregister(memory);
  for (void* memory : pinned_) (void)cudaFreeHost(memory);
  for (void* memory : device_) (void)cudaFree(memory);
}

void GpuScope::check(cudaError_t error, const char* what) {
  if (error == cudaSuccess || !status_) return;
  Status status = cuda_status(error, who_, what);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorInvalidDevice) {
    status_ = fail(ErrorCode::kUnavailable,
                   status.error().message + "; is there an NVIDIA GPU with its driver? see nvidia-smi");
  } else {
    status_ = std::move(status);
  }
}

void GpuScope::select(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (status_) check(cudaSetDevice(device), "cudaSetDevice");
  if (status_) name_ = "cuda:" + std::to_string(device) + " " + properties.name;
}

cudaStream_t GpuScope::stream() {
  cudaStream_t made = nullptr;
  if (status_) check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  if (made) streams_.push_back(made);
  return made;
}

cudaEvent_t GpuScope::event(bool timed) {
  cudaEvent_t made = nullptr;
  if (status_) check(cudaEventCreateWithFlags(&made, timed ? 0u : cudaEventDisableTiming), "cudaEventCreateWithFlags");
  if (made) events_.push_back(made);
  return made;
}

void* GpuScope::memory(std::size_t bytes) {
  void* made = nullptr;
  if (status_) check(cudaMalloc(&made, bytes), "cudaMalloc");
  if (made) device_.push_back(made);
  return made;
}

void* GpuScope::pinned(std::size_t bytes) {
  void* made = nullptr;
  if (status_) check(cudaHostAlloc(&made, bytes, cudaHostAllocDefault), "cudaHostAlloc");
  if (made) pinned_.push_back(made);
  return made;
}

void GpuScope::register_memory(void* memory, std::size_t bytes) {
  if (!status_) return;
  check(cudaHostRegister(memory, bytes, cudaHostRegisterDefault), "cudaHostRegister");
  if (status_) registered_.push_back(memory);
}

}  // namespace tributary::bench

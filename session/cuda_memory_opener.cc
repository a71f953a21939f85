#include <cuda_runtime_api.h>

#include <cstring>

#include "common/devices/cuda_devices.h"
#include "common/devices/cuda_error.h"
#include "session/device_memory_opener.h"

namespace tributary {
namespace {

class CudaMemoryOpener final : public DeviceMemoryOpener {
 public:
  explicit CudaMemoryOpener(CudaDevice device) : device_(std::move(device)) {}
  std::string uuid() const override { return device_.uuid; }

  Result<void*> open(std::span<const std::byte> handle) override {
    cudaIpcMemHandle_t ipc;
    if (handle.size() != sizeof ipc) {
      return fail(ErrorCode::kMalformed, device_.describe() + ": a memory handle of " + std::to_string(handle.size()) +
                                             " bytes is none of CUDA's");
    }
    std::memcpy(&ipc, handle.data(), sizeof ipc);
    void* memory = nullptr;
    Status done = cuda_status(cudaSetDevice(device_.index), device_.describe(), "cudaSetDevice");
    if (done) {
      done = cuda_status(cudaIpcOpenMemHandle(&memory, ipc, cudaIpcMemLazyEnablePeerAccess), device_.describe(),
                         "cudaIpcOpenMemHandle of the worker's memory (worker and trainer must see each other's "
                         "processes: the same container, or a shared PID and IPC namespace)");
    }
    if (!done) return tl::unexpected(done.error());
    return memory;
  }

  void close(void* memory) override {
    if (cudaSetDevice(device_.index) == cudaSuccess) cudaIpcCloseMemHandle(memory);
    cudaGetLastError();
  }

 private:
  const CudaDevice device_;
};

}  // namespace

Result<std::shared_ptr<DeviceMemoryOpener>> make_cuda_memory_opener(int device) {
  const CudaSystem system = inspect_cuda();
  if (system.devices.empty()) return fail(ErrorCode::kNotFound, system.no_devices);
  for (const CudaDevice& one : system.devices) {
    if (one.index == device) return std::make_shared<CudaMemoryOpener>(one);
  }
  return fail(ErrorCode::kNotFound, "there is no CUDA device " + std::to_string(device) + ": this machine has " +
                                        std::to_string(system.devices.size()));
}

}  // namespace tributary

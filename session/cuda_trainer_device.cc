#include <cuda_runtime_api.h>

#include <cstring>

#include "common/devices/cuda_devices.h"
#include "common/devices/cuda_error.h"
#include "common/devices/kept_context.h"
#include "session/trainer_device.h"

namespace tributary {
namespace {

class CudaTrainerDevice final : public TrainerDevice {
 public:
  explicit CudaTrainerDevice(CudaDevice device) : device_(std::move(device)) {}
  std::string uuid() const override { return device_.uuid; }

  Result<void*> open(std::span<const std::byte> handle) override {
    cudaIpcMemHandle_t ipc;
    if (handle.size() != sizeof ipc) {
      return fail(ErrorCode::kMalformed, device_.describe() + ": a memory handle of " + std::to_string(handle.size()) +
                                             " bytes is none of CUDA's");
    }
    std::memcpy(&ipc, handle.data(), sizeof ipc);
    void* memory = nullptr;
    const Status done = on_device(
        "cudaIpcOpenMemHandle of the worker's memory (worker and trainer must see each other's processes: the same "
        "container, or a shared PID and IPC namespace)",
        [&] { return cudaIpcOpenMemHandle(&memory, ipc, cudaIpcMemLazyEnablePeerAccess); });
    if (!done) return tl::unexpected(done.error());
    return memory;
  }

  void close(void* memory) override {
    (void)on_device("cudaIpcCloseMemHandle", [&] { return cudaIpcCloseMemHandle(memory); });
  }

  Status pin(std::span<std::byte> memory) override {
    return on_device("cudaHostRegister of the memory shared with the worker",
                     [&] { return cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault); });
  }

  void unpin(std::span<std::byte> memory) override {
    (void)on_device("cudaHostUnregister", [&] { return cudaHostUnregister(memory.data()); });
  }

  Status call_after(void* stream, void (*function)(void*), void* argument) override {
    // A graph would call it at each replay, and its argument is there for one call.
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    Status asked = on_device("cudaStreamIsCapturing",
                             [&] { return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture); });
    if (asked && capture != cudaStreamCaptureStatusNone) {
      asked = fail(ErrorCode::kInvalidArgument,
                   device_.describe() +
                       ": a gradient was said to be ready on a stream that is captured into a CUDA graph; capture the "
                       "forward and backward passes without the hooks that say so, and say it outside the capture");
    }
    if (!asked) return asked;
    return on_device("cudaLaunchHostFunc",
                     [&] { return cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), function, argument); });
  }

  Result<bool> idle(void* stream) override {
    bool done = false;
    const Status asked = on_device("cudaStreamQuery", [&] {
      const cudaError_t answer = cudaStreamQuery(static_cast<cudaStream_t>(stream));
      done = answer == cudaSuccess;
      return answer == cudaErrorNotReady ? cudaSuccess : answer;
    });
    if (!asked) return tl::unexpected(asked.error());
    return done;
  }

 private:
  // A call of the runtime applies to the device that its thread has chosen last. The trainer's choice is restored
  // afterwards.
  template <class Call>
  Status on_device(const char* operation, Call&& call) const {
    const KeptContext kept;
    Status done = cuda_status(cudaSetDevice(device_.index), device_.describe(), "cudaSetDevice");
    if (done) done = cuda_status(call(), device_.describe(), operation);
    return done;
  }

  const CudaDevice device_;
};

}  // namespace

Result<std::shared_ptr<TrainerDevice>> make_cuda_trainer_device(int device) {
  const CudaSystem system = inspect_cuda();
  if (system.devices.empty()) return fail(ErrorCode::kNotFound, system.no_devices);
  for (const CudaDevice& one : system.devices) {
    if (one.index == device) return std::make_shared<CudaTrainerDevice>(one);
  }
  return fail(ErrorCode::kNotFound, "there is no CUDA device " + std::to_string(device) + ": this machine has " +
                                        std::to_string(system.devices.size()));
}

}  // namespace tributary

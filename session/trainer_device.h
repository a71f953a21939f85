// TrainerDevice: a session's operations on the device that the trainer computes on (SessionOptions::device). An
// interface, so that tributary_session links no CUDA: the implementation is in the library tributary_session_cuda.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace tributary {

// Errors name the device, and have CUDA's words. Thread rule: any thread.
class TrainerDevice {
 public:
  virtual ~TrainerDevice() = default;
  // The device whose memory the worker lends: "GPU-...".
  virtual std::string uuid() const = 0;
  // Maps the whole allocation behind a handle of the worker's into this process.
  virtual Result<void*> open(std::span<const std::byte> handle) = 0;
  // REQUIRES: no work that uses it is under way. Before the session ends.
  virtual void close(void* memory) = 0;

  // Page-locks memory of the host, which lets copies to and from the device overlap with all else. Whole pages.
  virtual Status pin(std::span<std::byte> memory) = 0;
  // REQUIRES: it is pinned, and no copy of it is under way.
  virtual void unpin(std::span<std::byte> memory) = 0;

  // Calls `function`, on a thread of the driver, when the work now on `stream` (a cudaStream_t of this device) is done.
  // It must not call CUDA. If the device fails before, `function` is not called at all.
  virtual Status call_after(void* stream, void (*function)(void*), void* argument) = 0;
  // Whether all work on `stream` is done. An error: the device has failed, and waiting functions are not called.
  virtual Result<bool> idle(void* stream) = 0;
};

// Makes the device with this index, as the CUDA runtime counts in this process. kNotFound with the reason in a build
// without CUDA or without such a device.
Result<std::shared_ptr<TrainerDevice>> make_cuda_trainer_device(int device);

}  // namespace tributary

// DeviceMemoryOpener: how a trainer's process reaches device memory that the worker daemon lends (Session with
// SessionOptions::device). An interface, so that tributary_session links no CUDA: the real one is in the library
// tributary_session_cuda.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace tributary {

class DeviceMemoryOpener {
 public:
  virtual ~DeviceMemoryOpener() = default;
  // The device that this trainer computes on, "GPU-...": the worker lends memory of this one.
  virtual std::string uuid() const = 0;
  // The whole allocation behind a handle, mapped into this process. Errors name the device and CUDA's words.
  virtual Result<void*> open(std::span<const std::byte> handle) = 0;
  // REQUIRES: no work that uses it is under way. Before the session ends.
  virtual void close(void* memory) = 0;
};

// For the device with this index, as the CUDA runtime counts in this process. kNotFound with the reason in a build
// without CUDA or without such a device.
Result<std::shared_ptr<DeviceMemoryOpener>> make_cuda_memory_opener(int device);

}  // namespace tributary

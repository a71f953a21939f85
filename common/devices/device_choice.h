// Which device a trainer computes on: what the user asked for (--device), what the machine has, and what follows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/devices/cuda_devices.h"

namespace tributary {

// --device auto | cpu | cuda | cuda:N
struct DeviceRequest {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::optional<int> index;  // cuda:N

  // kInvalidArgument names the text and what is possible.
  static Result<DeviceRequest> parse(std::string_view text);
};

enum class DeviceKind { kCpu, kCuda };

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;               // of the CUDA device
  bool may_fall_back = false;  // to the CPU, should the GPU fail while it is set up: nobody insisted on it
  std::string why;             // if it is the CPU though a GPU would do as well: what stood in the way
};

// cuda means: device number local_rank modulo the number of devices, so that the ranks of a node share its GPUs evenly.
// auto means: that device, if this build can use it, else the CPU. kInvalidArgument if the user insists on a device
// that cannot be used, with the reason and the cure.
Result<DeviceChoice> choose_device(const DeviceRequest& request, const CudaSystem& cuda, std::uint32_t local_rank);

// The same for this machine; asks the CUDA driver only if the request leaves the choice to it.
Result<DeviceChoice> choose_device(const DeviceRequest& request, std::uint32_t local_rank);

}  // namespace tributary

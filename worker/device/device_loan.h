// DeviceLoan: a trainer's part of a job's device memory. DeviceLender: its owner, as a job's attach sees it: the node
// reduction (device_reducer.h) or an all-reduce job on devices (allreduce_devices.h).
#pragma once

#include <cstdint>
#include <string>

#include "worker/device/device_api.h"

namespace tributary {

struct DeviceLoan {
  std::string uuid;  // of the device that all of it is on
  IpcHandle gradients, parameters;
  std::uint64_t bytes = 0;  // of each
};

class DeviceLender {
 public:
  virtual ~DeviceLender() = default;
  virtual std::uint32_t width() const = 0;  // devices
  virtual std::string describe(std::uint32_t position) const = 0;
  virtual const DeviceLoan& loan(std::uint32_t rank) const = 0;
  virtual std::uint64_t pinned_bytes() const = 0;
};

// gradients, parameters: as DeviceApi::allocate() returned them.
inline Result<DeviceLoan> make_loan(DeviceApi& api, DeviceIndex device, void* gradients, void* parameters,
                                    std::uint64_t bytes) {
  const auto first = api.export_memory(device, gradients);
  if (!first) return tl::unexpected(first.error());
  const auto second = api.export_memory(device, parameters);
  if (!second) return tl::unexpected(second.error());
  return DeviceLoan{api.devices()[device.value].uuid, *first, *second, bytes};
}

}  // namespace tributary

#include "common/devices/cuda_devices.h"
#include "worker/device/cuda_device_api.h"

namespace tributary {

Result<std::shared_ptr<DeviceApi>> make_cuda_device_api() {
  return fail(ErrorCode::kNotFound, inspect_cuda().no_devices);
}

}  // namespace tributary

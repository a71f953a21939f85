#include "common/devices/cuda_devices.h"
#include "session/device_memory_opener.h"

namespace tributary {

Result<std::shared_ptr<DeviceMemoryOpener>> make_cuda_memory_opener(int) {
  return fail(ErrorCode::kNotFound, inspect_cuda().no_devices);
}

}  // namespace tributary

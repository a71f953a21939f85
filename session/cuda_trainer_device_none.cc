#include "common/devices/cuda_devices.h"
#include "session/trainer_device.h"

namespace tributary {

Result<std::shared_ptr<TrainerDevice>> make_cuda_trainer_device(int) {
  return fail(ErrorCode::kNotFound, inspect_cuda().no_devices);
}

}  // namespace tributary

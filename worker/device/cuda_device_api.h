// The DeviceApi of real devices: the CUDA runtime, our kernels (kernels/*.h, namespace cuda) and NCCL, which is loaded
// at run time. In a build without CUDA there is only the reason why not.
#pragma once

#include <memory>

#include "common/base/result.h"
#include "worker/device/device_api.h"

namespace tributary {

// The devices that this build can use. kNotFound with the reason if there are none,
// kUnavailable if there may be some soon. NCCL is looked for when a job needs
// it. Starts the driver up, which takes a moment; do not fork afterwards without exec.
Result<std::shared_ptr<DeviceApi>> make_cuda_device_api();

}  // namespace tributary

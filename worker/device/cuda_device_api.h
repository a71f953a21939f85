// The DeviceApi of real devices: the CUDA runtime, our kernels (kernels/*.h, namespace cuda) and NCCL, which is loaded
// at run time. A build without CUDA only returns the reason.
#pragma once

#include <memory>

#include "common/base/result.h"
#include "worker/device/device_api.h"

namespace tributary {

// Returns the devices that this build can use. kNotFound with the reason if there are none, kUnavailable if there may
// be some soon. NCCL is searched for when a job needs it. Starts the driver, which takes a moment; do not fork
// afterwards without exec.
Result<std::shared_ptr<DeviceApi>> make_cuda_device_api();

}  // namespace tributary

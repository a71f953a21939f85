// A build without CUDA. choose_device() never gets here; whoever does is told why.
#include "common/devices/cuda_devices.h"
#include "train/cuda_compute.h"

namespace tributary::train {

Result<std::unique_ptr<ModelCompute>> make_cuda_compute(const MlpShape&, const ImageSet&, int) {
  return fail(ErrorCode::kInvalidArgument, inspect_cuda().no_devices);
}

}  // namespace tributary::train

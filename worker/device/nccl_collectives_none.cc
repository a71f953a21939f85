#include "common/devices/cuda_libraries.h"
#include "worker/device/nccl_collectives.h"

namespace tributary {

Result<std::unique_ptr<NcclCollectives>> NcclCollectives::load(std::vector<Device>) {
  return fail(ErrorCode::kNotFound, nccl_left_out());
}

}  // namespace tributary

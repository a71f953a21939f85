#include "bench/gpu_pipeline.h"
#include "common/cuda_devices.h"

namespace tributary::bench {

Result<nlohmann::ordered_json> run_gpu_pipeline(const GpuPipelineOptions&) {
  return fail(ErrorCode::kNotFound, inspect_cuda().no_devices);
}

}  // namespace tributary::bench

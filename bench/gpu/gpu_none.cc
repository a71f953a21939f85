// The GPU measurements of a build without CUDA.
#include "bench/gpu/gpu_costs.h"
#include "bench/gpu/gpu_kernel_bench.h"
#include "bench/gpu/gpu_pipeline.h"
#include "common/devices/cuda_devices.h"

namespace tributary {
namespace {

constexpr const char* kNone = "this build has no CUDA; configure with -DTRIBUTARY_CUDA=ON, with nvcc on PATH";

}  // namespace

Result<nlohmann::json> run_gpu_kernel_bench(const GpuKernelBenchOptions&) {
  return fail(ErrorCode::kUnavailable, kNone);
}

namespace bench {

Result<nlohmann::ordered_json> run_gpu_costs(const GpuCostsOptions&) {
  return fail(ErrorCode::kUnavailable, kNone);
}

Result<nlohmann::ordered_json> run_gpu_pipeline(const GpuPipelineOptions&) {
  return fail(ErrorCode::kNotFound, inspect_cuda().no_devices);
}

}  // namespace bench
}  // namespace tributary

// In a build without CUDA.
#include "bench/gpu_kernel_bench.h"

namespace tributary {

Result<nlohmann::json> run_gpu_kernel_bench(const GpuKernelBenchOptions&) {
  return fail(ErrorCode::kUnavailable,
              "bench gpu-kernels: this build has no CUDA; configure with -DTRIBUTARY_CUDA=ON, with nvcc on PATH");
}

}  // namespace tributary

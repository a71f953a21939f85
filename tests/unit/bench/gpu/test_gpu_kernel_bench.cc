#include <doctest/doctest.h>

#include "bench/gpu/gpu_kernel_bench.h"

namespace tributary::gpu_kernel_bench_test {

namespace {

TEST_CASE("bench gpu-kernels measures every kernel where there is a device, and says why not where there is none") {
  GpuKernelBenchOptions options{.elements = 70001, .repetitions = 2};
  const Result<nlohmann::json> result = run_gpu_kernel_bench(options);
  if (!result) {
    CHECK(result.error().code == ErrorCode::kUnavailable);
    CHECK(result.error().message.size() > 40);
    return;
  }
  CHECK(result->at("copy_gb_per_s").get<double>() > 0.0);
  CHECK(result->at("results").size() > 25);
  for (const auto& row : result->at("results")) {
    CHECK(row.at("gb_per_s").get<double>() > 0.0);
    CHECK(row.at("ratio").get<double>() > 0.0);
  }
}

}  // namespace

}  // namespace tributary::gpu_kernel_bench_test

// In a build without CUDA.
#include <cstdio>

#include "bench/gpu_costs.h"

namespace tributary::bench {
namespace {

constexpr const char* kNone =
    "bench gpu-costs: this build has no CUDA; configure with -DTRIBUTARY_CUDA=ON, with nvcc on PATH";

}  // namespace

Result<nlohmann::ordered_json> run_gpu_costs(const GpuCostsOptions&) {
  return fail(ErrorCode::kUnavailable, kNone);
}

Result<nlohmann::ordered_json> run_gpu_peers(int, const std::string&) {
  return fail(ErrorCode::kUnavailable, kNone);
}

int run_gpu_peer(GpuPeer, int, const std::string&) {
  std::fprintf(stderr, "%s\n", kNone);
  return 1;
}

}  // namespace tributary::bench

// `tributary bench gpu-costs`: costs of single operations on a GPU, as the device path uses them: a launch, a copy, an
// event, a host function; the link at several sizes.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary::bench {

struct GpuCostsOptions {
  int device = 0;            // as the CUDA runtime counts
  unsigned repetitions = 9;  // each figure is the median of so many
  std::vector<std::size_t> sizes = {256u << 10, 1u << 20, 4u << 20, 16u << 20, 64u << 20};  // of copies, bytes
  std::size_t link_bytes = 256u << 20;  // copied each way for a figure of the link, at least four times the size
};

// Measures:
//   calls_us   launch, copy, record, wait, host_function: the thread's time for one call, of many on a busy stream;
//              launch_and_wait: one kernel, until a waiting thread continues
//   host_function_gap_us   by which a host function behind each copy delays the next, on the same stream
//   links      rows {bytes, memory "pinned" or "registered", direction "to_host", "to_device" or "both", callbacks,
//              gb_per_s}; both: the sum of the two
// Errors: kInvalidArgument, kUnavailable without a device or in a build without CUDA, kLimit without memory.
Result<nlohmann::ordered_json> run_gpu_costs(const GpuCostsOptions& options);

}  // namespace tributary::bench

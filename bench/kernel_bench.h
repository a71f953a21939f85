// `tributary bench kernels`: the speed of the CPU kernels (kernels/), and of the servers' fused sum and step, on one core,
// compared with memcpy in the same run.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/result.h"

namespace tributary {

struct KernelBenchOptions {
  std::size_t elements = 16u << 20;       // fp32 values; their array should be several times the last-level cache
  std::size_t chunk_elements = 1u << 18;  // handled by one call, as a chunk of a job is
  double top_k = 0.01;                    // the share of values that top-k sends
  std::string optimizer = "adamw";        // of the steps; with momentum if it has it
  double seconds = 5.0;                   // measuring time over everything; at least 5 repetitions are made
};

// Runs the measurement on one thread and returns
//
//   elements, chunk_elements, top_k, optimizer, repetitions
//   clock            "thread_cpu": CPU seconds, which include waiting for memory, but not the turns of other processes
//   memcpy_gb_per_s  bytes copied per second (each is read once and written once)
//   results[]        one object for each kernel:
//     kernel
//     gb_per_s         of fp32 values handled: 4 bytes for each value that is encoded, decoded or put out
//     bytes_per_value  read and written, per value
//     ratio            gb_per_s / memcpy_gb_per_s
//
// All figures are medians over the repetitions, each of which measures everything once, so that what is compared saw
// the same machine; `ratio` is the median of the repetitions' ratios. Errors: kInvalidArgument for an unknown optimizer
// or an impossible number; kLimit if memory for the arrays cannot be had.
Result<nlohmann::json> run_kernel_bench(const KernelBenchOptions& options);

}  // namespace tributary

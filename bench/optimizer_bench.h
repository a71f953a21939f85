// `tributary bench optimizer`: parameters per second of the servers' hot loop (common/math/fused_step.h), compared with
// the bound that the machine's memory, in the same run, sets for the bytes that the loop must move.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary {

struct OptimizerBenchOptions {
  std::string optimizer = "adamw";              // with momentum if it has it
  std::size_t elements = 16u << 20;             // parameters; their arrays should be several times the last-level cache
  std::size_t chunk_bytes = 1u << 20;           // fp32 bytes of a chunk; each array of a chunk is a buffer of its own
  double seconds = 5.0;                         // measuring time over everything; at least 5 repetitions are made
  unsigned threads = 1;                         // the chunks are divided among them
  std::vector<unsigned> inputs = {1, 2, 4, 8};  // numbers of gradient frames: any of these four
};

// Runs the measurement and returns
//
//   optimizer, elements, chunk_bytes, threads, repetitions
//   clock                   "thread_cpu": seconds are CPU seconds of the slowest thread. They include waiting for
//                           memory, not the turns of other processes on the same cores; on free cores it is the time
//                           that passed
//   memcpy_gb_per_s         bytes copied per second (each is read once and written once)
//   results[]               one object for each number of inputs:
//     inputs
//     parameters_per_s      fused sum, scale and step
//     bytes_per_parameter   frames and state read, state written; fp32
//     gb_per_s              their product
//     stream_gb_per_s       the bound: a loop that reads and writes the same arrays and computes next to nothing
//     ratio                 gb_per_s / stream_gb_per_s
//                           (may pass 1: the loop over many inputs has more streams at once than the prefetchers
//                           follow; the fused step, block by block, has fewer)
//
// All figures are medians over the repetitions, each of which measures everything once, so that what is compared saw
// the same machine; `ratio` is the median of the repetitions' ratios. Errors: kInvalidArgument for an unknown optimizer
// or an impossible number; kLimit if memory for the arrays cannot be had.
Result<nlohmann::json> run_optimizer_bench(const OptimizerBenchOptions& options);

}  // namespace tributary

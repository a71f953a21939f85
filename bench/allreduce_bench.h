// `tributary bench allreduce`: rounds of the workers' all-reduce lanes (worker/allreduce_lane.h) on the loopback
// interface, beside the Gloo library's own ring of equal size (bench/gloo_baseline.h) in the same run, in turns.
//
// A node is a lane and a thread for each trainer, all in this process. Trainers do no computing: all gradients of a
// round are ready at once, last tensor first, and the round is over when every node has all new parameters. So nothing
// is hidden behind a backward pass or behind the next round: what is compared is the exchange.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/result.h"

namespace tributary::bench {

struct AllreduceBenchOptions {
  std::uint32_t nodes = 2;
  std::uint32_t ranks_per_node = 1;
  std::uint64_t model_bytes = 64u << 20;
  std::string algorithm = "hierarchical";
  std::string optimizer = "adamw";
  std::uint64_t chunk_bytes = 0;  // 0: the default
  std::uint16_t streams = 0;      // 0: the default
  std::uint32_t rounds = 10;      // in each turn
  std::uint32_t turns = 5;
};

// Fields: explained by `tributary bench allreduce --help`. Checks at the end that all nodes have the same parameters.
Result<nlohmann::ordered_json> run_allreduce_bench(const AllreduceBenchOptions& options);

}  // namespace tributary::bench

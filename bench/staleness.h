// `tributary bench staleness`: does the bound on staleness hold? Servers, workers and ranks as real processes; the
// ranks count themselves what their parameters hold (staleness_rank.h).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cluster/local_cluster.h"
#include "common/result.h"

namespace tributary::bench {

struct StalenessOptions {
  std::optional<std::uint64_t> staleness = 3;  // none: async
  std::uint16_t servers = 2;
  std::uint32_t nodes = 3;
  std::uint32_t ranks_per_node = 1;
  std::uint32_t chunks = 32;
  std::uint64_t pulls = 10'000;  // at least so many, over all nodes
  std::uint32_t slow_us = 400;   // staleness_rank.h
  std::uint64_t seed = 1;
  Transport transport = Transport::kShm;
  double seconds = 600.0;  // at most
  std::string program;     // tributary
};

// {staleness (null: async), nodes, ranks_per_node, clocks, chunks, transport, pulls (of nodes), violations (of all
// ranks, by kind, and total), first_violation, max_staleness, mean_staleness, histogram (by staleness, without zeros at
// its end), told_agrees (what the answers say is what the parameters show), seconds}
Result<nlohmann::ordered_json> run_staleness(const StalenessOptions& options);

}  // namespace tributary::bench

// `tributary bench gloo-ring-rank`: one rank of Gloo's own ring all-reduce, without anything of ours: the rival that
// `tributary lab run --baseline gloo` measures on the same hosts.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/result.h"

namespace tributary::bench {

struct GlooRingOptions {
  std::uint32_t rank = 0, size = 1;
  std::string address;  // of this host, which the others connect to
  std::string store;    // folder, the same for all ranks, in which they find each other; new for every run
  std::uint64_t model_bytes = 16u << 20;
  std::uint32_t rounds = 10;
  std::uint32_t warmup = 3;
  std::string gate;  // folder (lab/gate.h); empty: no gates
};

// The fields of run_exchange_rank, but for those of our daemons. The digest is of the sums, which are checked.
Result<nlohmann::ordered_json> run_gloo_ring_rank(const GlooRingOptions& options);

}  // namespace tributary::bench

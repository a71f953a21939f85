// `tributary bench exchange-rank`: one rank of a job that computes nothing. It attaches to its host's worker as a
// trainer does, declares all gradients ready at once, waits for all parameters, and notes when each round began and
// ended. What `tributary lab run --exchange` starts on every host.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/config.h"
#include "common/result.h"
#include "worker/session.h"

namespace tributary::bench {

struct ExchangeRankOptions {
  JobConfig job;
  std::string socket;  // the worker's
  Topology topology;
  std::uint64_t model_bytes = 16u << 20;
  std::uint32_t rounds = 10;
  std::uint32_t warmup = 3;
  // A tensor's next gradient is ready as soon as its parameters came, without waiting for the other tensors.
  bool flowing = false;
  std::string gate;  // folder (lab/gate.h); empty: no gates
};

// {rank, rounds, model_bytes, begin_ns[], end_ns[] (of the monotonic clock, which all processes of a machine share; of
// the measured rounds), median_seconds, bytes_pushed, bytes_pulled (of this node, in the measured rounds), chunk_bytes,
// digest}
Result<nlohmann::ordered_json> run_exchange_rank(const ExchangeRankOptions& options);

}  // namespace tributary::bench

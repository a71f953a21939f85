// `tributary bench checkpoint`: what saving a checkpoint costs the rounds that go on meanwhile.
//
// Trainers attach from threads of this process and only exchange, round after round. Quiet stretches and saves take
// turns; the rounds that a save overlaps are compared with the others. A pause would show as a long round, and as a
// long time in which no tensor arrives.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "cluster/local_cluster.h"
#include "common/result.h"

namespace tributary::bench {

struct CheckpointBenchOptions {
  std::uint16_t servers = 2;
  std::uint32_t nodes = 2;                 // of one rank each
  std::uint64_t state_bytes = 1ull << 30;  // parameters and AdamW's state, over all servers
  std::uint32_t saves = 3;
  double quiet_seconds = 6.0;       // before each save
  std::uint32_t compute_ms = 0;     // that ranks sleep between rounds
  std::uint32_t io_mb_per_s = 200;  // of each server
  Transport transport = Transport::kShm;
};

// The object's fields are explained by `tributary bench checkpoint --help`. The last checkpoint is verified. Call it on
// the main thread: it starts daemons.
Result<nlohmann::ordered_json> run_checkpoint_bench(const CheckpointBenchOptions& options);

}  // namespace tributary::bench

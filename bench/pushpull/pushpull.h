// `tributary bench pushpull`: gradients in, parameters out, through real server and worker daemons, at full speed.
//
// Trainers attach from threads of this process and do no computing: as soon as a tensor's new parameters are there its
// next gradient is declared ready, tensor by tensor, without a barrier between rounds, as in a trainer whose layers
// flow. The ceiling (bench/pushpull/echo_ceiling.h) is measured before, between and after slices of the measurement, so that
// both see the same machine.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/measurement.h"
#include "bench/pushpull/pushpull_ranks.h"
#include "common/base/command_line.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::bench {

struct PushPullOptions {
  std::uint16_t servers = 1;
  std::uint32_t nodes = 1;
  std::uint32_t ranks_per_node = 1;
  std::uint64_t model_bytes = 256u << 20;  // of fp32 parameters
  std::string optimizer = "adamw";
  Transport transport = Transport::kTcp;
  double seconds = 5.0;            // of measuring, in all slices together
  std::uint32_t slices = 5;        // in turns with those of the baseline; figures are medians over them
  std::uint16_t lanes = 0;         // 0: the daemons choose
  std::uint64_t chunk_bytes = 0;   // 0: from the model and the lanes
  std::uint32_t window_bytes = 0;  // cap; 0: the workers choose
  EncodingSpec push;
  EncodingSpec pull;
  bool ceiling = true;
  std::optional<PayloadSecurity> secure = {};  // with keys, and compared with clusters that have less security
  bool store = false;
  std::string base_dir;                               // keeps the daemons' folders, with logs at debug; empty: nothing
  std::string program;                                // this program, for the echo server
  std::optional<RankDevice> device;                   // of all ranks (bench/gpu/gpu_pipeline.h)
  std::string worker_toml;                            // sections to add to the workers' configuration
  RecoveryConfig recovery;                            // counts with a store, as this:
  SnapshotConfig snapshot = {.copies = 1};            // as on one machine
  bool ranks_write = false;                           // their gradients, in every round, as trainers do
  std::function<void(const std::string&)> tell = {};  // prints progress; may be null
};

// Measures, and checks at the end that the parameters are finite, have changed and are the same on every node.
// `tributary bench pushpull --help` explains the object's fields. Thread: the main one, because it starts daemons.
Result<nlohmann::ordered_json> run_pushpull(const PushPullOptions& options);

// Measures the cost of survival: clusters of the same kind, whose slices take turns. off: a store, and nothing is
// written; redo: snapshots, and nodes keep their pushes; copies, with two servers or more: each part of a snapshot on
// two of them, too. After its slice a cluster finishes its writes and copies before the next one's slice begins, and
// the first cluster changes from slice to slice. kInvalidArgument: the model is so large that nothing would be kept.
// kUnavailable: no slice had a snapshot, or a process ended. kTimeout: a snapshot does not end.
Result<nlohmann::ordered_json> run_durability(const PushPullOptions& options);

// The common part of pushpull and gpu-pipeline: their options, and the preparation of either.
void add_exchange_options(CliCommand command, PushPullOptions& options);
void begin_exchange(PushPullOptions& options, const MeasurementRun& run);

}  // namespace tributary::bench

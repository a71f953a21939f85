// `tributary bench cluster-scale`: messages and memory of server 0 in clusters too large for this machine.
//
// The daemons' own cores, coordinator and shard, are driven on virtual wires: no sockets, threads or trainers. Messages
// are encoded as the daemons encode them, and counted. The coordinator has the whole cluster and model. A lane of
// server 0 has some of its chunks, each of which is pushed by all nodes; their costs are scaled to all its chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/measurement.h"
#include "common/base/result.h"

namespace tributary::bench {

struct ClusterScaleOptions {
  std::vector<std::uint32_t> nodes = {16, 64, 256, 1024};
  std::uint16_t servers = 64;
  std::uint16_t lanes = 8;  // of each server
  std::uint32_t ranks = 8;  // of each node
  std::uint64_t model_bytes = 4'000'000'000;
  std::uint32_t chunks = 2;  // of server 0 that are pushed
};

// A row a number of nodes; docs/scale.md has its fields. kInvalidArgument: fewer than two nodes.
Status run_cluster_scale(const ClusterScaleOptions& options, MeasurementRun& run);

}  // namespace tributary::bench

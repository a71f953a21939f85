// Judges saved checkpoints: each must be whole, of one round, with the reference's bits, and with the states that ranks
// kept after that round.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "server/coordinator/orders/checkpoint_orders.h"
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/disk/checkpoints_sim.h"

namespace tributary::sim {

class CheckpointsJudge {
 public:
  using Broken = std::function<void(const std::string&)>;
  // The right parameters of a chunk at that version, in the history of that view; none: there is no one right state.
  using Right = std::function<std::optional<std::span<const float>>(ViewId view, ChunkIndex chunk, Round version)>;
  CheckpointsJudge(const ClusterScenario& scenario, Right right, Broken broken)
      : scenario_(scenario), right_(std::move(right)), broken_(std::move(broken)) {}

  void saved(const CheckpointStatus& status, const CheckpointFiles& files) const;

 private:
  void check_chunk(const Manifest& manifest, const CheckpointFiles::Directory& directory, ChunkIndex chunk) const;

  const ClusterScenario& scenario_;
  const Right right_;
  const Broken broken_;
};

}  // namespace tributary::sim

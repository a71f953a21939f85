// A lane's part of a job in a view.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/ids.h"
#include "common/config/job_plan.h"

namespace tributary {

struct ShardJob {
  std::shared_ptr<const ViewPlan> view;
  ShardIndex shard;
  LaneIndex lane;
  bool recovers = false;  // keep the nodes' parameters before the last step. REQUIRES: no clocks

  const JobPlan& plan() const { return *view->plan; }
  // Jobs with clocks: the answer to clock c of a node waits while the slowest node's clock is below c - s. So a
  // node's parameters at clock c + 1 hold all pushes up to clock c - s, and its own. 0: nodes go clock by clock, as
  // in synchronous rounds, but every push is a step of its own.
  static constexpr std::uint64_t kUnbounded = ~0ull;
  std::uint64_t staleness() const {
    return plan().config.mode == Mode::kSsp ? plan().config.ssp.staleness : kUnbounded;
  }
};

}  // namespace tributary

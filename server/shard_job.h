// What a lane must know to own its part of a job in a view.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/config.h"
#include "common/encoding.h"
#include "common/ids.h"
#include "common/layout.h"
#include "kernels/optimizer.h"

namespace tributary {

// How nodes with clocks of their own are kept together. s = staleness, n = nodes.
struct ClockRules {
  static constexpr std::uint64_t kUnbounded = ~0ull;
  // The answer to clock c of a node waits while the slowest node's clock is below c - s. So what a node computes from
  // at clock c + 1 holds all pushes up to clock c - s, and its own. 0: nodes go clock by clock, as in synchronous
  // rounds, but every push is a step of its own.
  std::uint64_t staleness = kUnbounded;
};

struct ShardJob {
  JobId job;
  ViewId view;
  std::uint32_t nodes = 1;
  std::shared_ptr<const Layout> layout;
  ShardIndex shard;
  LaneIndex lane;
  std::shared_ptr<const kernels::Optimizer> optimizer;
  double lr = 0.0;
  ScheduleConfig schedule;
  EncodingSpec push;
  EncodingSpec pull;
  bool recovers = false;             // keep what nodes held before the last step
  std::optional<ClockRules> clocks;  // none: synchronous rounds. REQUIRES: not with recovers
  Round start;                       // the snapshot behind this view (clocks: every node's begins there); 0: none
  bool resumes = false;              // every chunk is restored or kept: nobody's initial values are awaited
  std::optional<GateConfig> gate;    // rounds wait for decide(). REQUIRES: no clocks, no residuals
};

}  // namespace tributary

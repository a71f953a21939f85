// Sums of a trace: per node as in status (worker/node/pace_meter.h), next to its meters' figures of the same rounds;
// and the busy time in a round of each resource that could bind the job. Pure: of events by one clock (trace_clocks.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/trace/trace_data.h"

namespace tributary::trace {

struct Phases {
  std::uint64_t compute_ns = 0, reduce_ns = 0, network_ns = 0;  // in all rounds that are counted
};
struct NodeSums {
  std::uint32_t node = 0;
  Phases events, meters;
  double network_s = 0.0;  // a round: pushes, or answers, are under way; the longer of the two
  double out_s = 0.0, in_s = 0.0;
  double memory_s = 0.0;    // a round, of its busiest lane: it sums, encodes and delivers
  double last_share = 0.0;  // of the chunks' rounds in which its push was the last one
  double late_s = 0.0;      // a round: by how much it came after the others then, as a mean over those chunks
};

struct Sums {
  std::uint64_t rounds = 0;        // that are counted: all but the first, if those and the one before are whole
  std::uint64_t whole_rounds = 0;  // of which every chain is whole
  double round_s = 0.0;            // mean, from the last answer of one to the last answer of the next
  std::vector<NodeSums> nodes;
  double servers_s = 0.0;  // a round, of the busiest server lane: it steps
  std::uint32_t busiest_server = 0;
  std::uint64_t chains = 0;  // whole ones

  double computing_s() const;  // a round, of the slowest node
  double network_s() const;    // of the busiest
  double memory_s() const;
  // The largest difference between events and meters in a phase of a node, as a part of the meter's figure. (For phases
  // of less than a thousandth of a round: as a part of that.) None: there are no meters.
  std::optional<double> difference() const;
};

Sums sums_of(const Data& data, const std::vector<Chain>& chains);

}  // namespace tributary::trace

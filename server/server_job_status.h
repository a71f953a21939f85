// ServerJobStatus: a job on a server, for status and metrics. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/config/job_plan.h"
#include "common/wire/messages.h"
#include "server/lane/lane_gauges.h"
#include "server/memory_formula.h"

namespace tributary {

struct ServerJobStatus {
  std::shared_ptr<const ViewPlan> view;
  std::string phase;           // opening, running, stopping
  std::uint32_t chunks = 0;    // owned by this server
  std::uint64_t elements = 0;  // in them
  bool resumed = false;        // from the snapshot of ViewPlan::start
  std::optional<Round> snapshot_pending;
  std::optional<Round> snapshot_durable;
  Round snapshot_committed;  // the newest that all servers are known to have; 0: none
  std::uint64_t snapshot_bytes = 0;
  std::string snapshot_error;  // of the last one that failed
  Round gate_round;            // jobs with a gate: the newest round that was decided, in this view
  GateDecision decision;
  std::uint64_t rounds_clipped = 0, rounds_skipped = 0;  // in this view
  ShardMemory memory;                                    // without what the gauges know
  std::vector<std::shared_ptr<LaneJobGauges>> gauges;

  // From the gauges, as of now.
  Version min_version() const;
  Version max_version() const;
  std::uint64_t pool_bytes() const;
  bool prepared() const;  // all lanes are, for a snapshot
  std::uint64_t withheld() const;
  // By node, in modes with clocks: on the chunks where it is last and furthest.
  std::vector<std::pair<Round, Round>> clocks() const;
  MemoryTerms memory_terms() const;
};

}  // namespace tributary

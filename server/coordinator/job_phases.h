// The phases of a job in the coordinator, each with what it needs and nothing else:
//
//   idle -> gathering (nodes join) -> opening (shards load) -> running -> stopping (the last state is written) -> idle
//
// A view begins with opening and goes on from phase to phase until the job is idle or gathers again.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <variant>

#include "common/base/patience.h"
#include "common/wire/messages.h"
#include "server/coordinator/job_members.h"
#include "server/coordinator/round_gate.h"
#include "server/coordinator/snapshot_schedule.h"
#include "server/coordinator/straggler_watch.h"
#include "server/coordinator/view_start.h"

namespace tributary {

// What servers kept of the last view, and those who have yet to say.
struct BetweenViews {
  KeptShards kept;
  std::set<std::uint16_t> asked;
};

struct JobView {
  JobMembers members;
  ViewStart start;
  std::optional<RoundGate> gate;  // if the job has one
};

namespace phase {

struct Idle {
  BetweenViews between;
  std::optional<JobConfig> restoring;  // what it will be: its state is being loaded, and nobody may join
};
struct Gathering {
  BetweenViews between;
  JobMembers members;
};
struct Opening {
  JobView view;
  std::set<std::uint16_t> ready;  // servers that have opened it
};
struct Running {
  JobView view;
  SnapshotSchedule snapshots;
  StragglerWatch stragglers;
  bool stop_requested = false;                 // of its nodes, after their round
  std::optional<Round> joins_after;            // somebody wants to join, after a later snapshot than this
  std::optional<Patience> lagging;             // some nodes have finished, others not
  std::optional<SnapshotDone> node_zero_kept;  // all-reduce: what node 0 said of its last checkpoint
};
struct Stopping {
  JobView view;
  StopKind kind = StopKind::kStopped;
  Round round;  // that the view ends with
  std::uint64_t since_ms = 0;
  std::set<std::uint16_t> done;  // shards that have written it, or failed to
  bool failed = false;           // it is not durable everywhere
};

}  // namespace phase

using JobPhase = std::variant<phase::Idle, phase::Gathering, phase::Opening, phase::Running, phase::Stopping>;

}  // namespace tributary

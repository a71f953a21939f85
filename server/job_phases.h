// The phases of a job in the coordinator, each with what it needs and nothing else:
//
//   idle -> gathering (nodes join) -> opening (shards load) -> running -> stopping (the last state is written) -> idle
//
// A view begins with opening and goes on from phase to phase until the job is idle or gathers again.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "common/messages.h"
#include "common/patience.h"
#include "server/job_members.h"
#include "server/round_gate.h"
#include "server/snapshot_schedule.h"
#include "server/straggler_watch.h"
#include "server/view_start.h"

namespace tributary {

// No view is open: what servers kept of the last one, and those who have yet to say.
struct BetweenViews {
  KeptShards kept;
  std::set<std::uint16_t> asked;
};
struct Idle {
  BetweenViews between;
  std::optional<JobConfig> restoring;  // what it will be: its state is being loaded, and nobody may join
};
struct Gathering {
  BetweenViews between;
  Members members;
};

struct View {
  Members members;
  ViewStart start;
  std::optional<RoundGate> gate;  // if the job has one
};
struct Opening {
  View view;
  std::set<std::uint16_t> ready;  // servers that have opened it
};
struct Running {
  View view;
  SnapshotSchedule snapshots;
  StragglerWatch stragglers;
  bool stop_requested = false;                 // of its nodes, after their round
  std::optional<Round> joins_after;            // somebody wants to join, after a later snapshot than this
  std::optional<Patience> lagging;             // some nodes have finished, others not
  std::optional<SnapshotDone> node_zero_kept;  // all-reduce: what node 0 said of its last checkpoint
};
struct Stopping {
  View view;
  StopKind kind = StopKind::kStopped;
  Round round;  // that the view ends with
  std::uint64_t since_ms = 0;
  std::set<std::uint16_t> done;  // shards that have written it, or failed to
  bool failed = false;           // it is not durable everywhere
};

using JobPhase = std::variant<Idle, Gathering, Opening, Running, Stopping>;

}  // namespace tributary

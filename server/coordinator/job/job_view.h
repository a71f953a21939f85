// A view of a job in the coordinator: its members and its start. And the facts between two views. Pure data.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/wire/messages.h"
#include "server/coordinator/job/first_rank.h"
#include "server/coordinator/job/job_members.h"
#include "server/coordinator/job/view_start.h"
#include "server/coordinator/round/round_gate.h"

namespace tributary {

// The time between two views: the servers' state of the last one, and the servers that have yet to report theirs.
struct BetweenViews {
  KeptShards kept;
  std::set<std::uint16_t> asked;
  std::string going;  // a peer that must stop: servers first write their kept states; empty: none
};

struct JobView {
  JobMembers members;
  ViewStart start;
  std::optional<RoundGate> gate;  // if the job has one
  FirstRank first = {};
};

}  // namespace tributary

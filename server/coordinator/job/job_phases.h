// The phases of a job in the coordinator, each with what it needs and nothing else:
//
//   idle -> gathering (nodes join) -> opening (shards load) -> running -> stopping (the last state is written) -> idle
//
// A view begins with opening and goes on from phase to phase until the job is idle or gathers again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "server/coordinator/job/running_view.h"
#include "server/coordinator/job/stopping_view.h"

namespace tributary {

struct IdleJob {
  BetweenViews between;
  std::optional<JobConfig> restoring;  // what it will be: its state is being loaded, and nobody may join
  bool removing = false;               // its records go, and nobody may join
};
struct GatheringJob {
  BetweenViews between;
  JobMembers members;
  std::map<std::uint32_t, std::string> refused;  // nodes that are missing because they may not join as they are: why
  std::optional<ViewStart> start = {};           // of the view that opens when its record is saved
};
struct OpeningView {
  JobView view;
  std::set<std::uint16_t> ready;                  // servers that have opened it
  std::map<std::uint16_t, std::uint64_t> loaded;  // bytes, by server, as they said last
};

using JobPhase = std::variant<IdleJob, GatheringJob, OpeningView, RunningView, StoppingView>;

}  // namespace tributary

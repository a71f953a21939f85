// The phases of a job in the coordinator, each with what it needs and nothing else:
//
//   idle -> gathering (nodes join) -> opening (shards load) -> running -> stopping (the last state is written) -> idle
//
// A view begins with opening and goes on from phase to phase until the job is idle or gathers again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "server/coordinator/job/running_view.h"
#include "server/coordinator/job/stopping_view.h"

namespace tributary {

// The state of a job is being loaded into its servers' stores, from a checkpoint or from other servers. Nobody may join.
struct LoadingJob {
  JobConfig config;                             // of the job to be
  std::string what;                             // happens to it, in words: "restored"
  std::unique_ptr<SnapshotCopies> copies = {};  // of a deal; null: it is restored
};
struct IdleJob {
  BetweenViews between;
  std::optional<LoadingJob> loading;
  bool removing = false;  // its records go, and nobody may join
};
struct GatheringJob {
  BetweenViews between;
  JobMembers members;
  std::map<std::uint32_t, std::string> refused;  // nodes that are missing because they may not join as they are: why
  std::optional<ViewStart> start = {};           // of the view that opens when its record is saved
};
struct OpeningView {
  JobView view;
  std::set<std::uint16_t> awaited;                // servers that have still to open it
  std::map<std::uint16_t, std::uint64_t> loaded;  // bytes, by server, as they said last
};

using JobPhase = std::variant<IdleJob, GatheringJob, OpeningView, RunningView, StoppingView>;

}  // namespace tributary

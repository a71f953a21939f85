// Where a view begins. Pure: reports of what servers and nodes have in, a choice out; docs/recovery.md explains why it
// can be had.
//
// A round r can be the beginning if every chunk can be had at r. Servers that lived through a loss have their chunks in
// memory, each at version r or r+1 for the least r: no node pushes a chunk of round r+2 before it has all of r+1. For
// chunks at r+1 they have the parameters before the last step, too (server/shard/shard_chunks.h), and recognize
// repeated pushes of round r+1. A server that was lost loads the last committed snapshot, and the nodes push again what
// they pushed since, if each of them still has it. If any of that cannot be had, the view begins at the snapshot, and
// the state that servers kept is dropped: the rounds since are computed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/config/job_plan.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_record.h"
#include "server/coordinator/job/job_members.h"

namespace tributary {

struct ViewStart {
  bool resume = false;           // state is loaded, of
  Round loaded;                  // this snapshot; all-reduce: checkpoint of node 0
  Round round;                   // where it begins: at or after that
  std::set<std::uint16_t> kept;  // shards that continue with what they kept in memory
  // The shards of `kept` that were still catching up, and the version that all of their chunks have: nodes push the
  // rounds after that again, and a chunk that has one already acknowledges it.
  std::map<std::uint16_t, Version> behind = {};
  bool ahead = false;  // some chunks of the kept shards are one round further

  bool anew() const { return !resume && kept.empty(); }
  // shards: of the job.
  std::string in_words(std::size_t shards) const;
};

using KeptShards = std::map<std::uint16_t, KeptJob>;  // what servers kept of the last view

// State that can be had besides the state on disks.
struct StateInMemory {
  const KeptShards& shards;
  const JobMembers& members;
  // Every shard had been through this round once, even if one was still being brought up to it when the last view
  // ended.
  Round reached;
};

// resume, loaded: the newest state on disks. shards: that own chunks of the job.
ViewStart choose_start(bool resume, Round loaded, const JobRecord& record, const JobPlan& plan,
                       const std::set<std::uint16_t>& shards, const StateInMemory& memory);

}  // namespace tributary

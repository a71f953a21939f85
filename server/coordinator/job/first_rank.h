// FirstRank: one rank's state of the round that a view begins at, for ranks whose states are not known: the bytes, or
// the rank of the view that is to give them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/wire/messages.h"
#include "server/coordinator/job/job_members.h"
#include "server/coordinator/job/view_start.h"

namespace tributary {

struct FirstRank {
  std::vector<std::byte> state;        // as snapshots and ranks of the view before have it; empty: they have none
  std::uint32_t giver = kNobody;       // then: the rank that is to give it
  std::optional<NodeRankState> given;  // its state
};

// Ranks of a view, in the order of its nodes.
std::uint32_t rank_in_view(const JobMembers& members, std::uint32_t node, std::uint32_t local_rank);

// The lowest rank of the view whose process has lived through the job's last one; kNobody: none has.
std::uint32_t one_that_lived(const JobMembers& members, JobId job);
// The lowest rank of which its node's worker holds a whole state of this round; kNobody: there is none.
std::uint32_t one_that_is_held(const JobMembers& members, JobId job, Round round);

// known: the whole state that snapshots, or ranks of the view before, have of the round; empty: none.
FirstRank choose_first(std::vector<std::byte> known, const JobMembers& members, JobId job, const ViewStart& start);

}  // namespace tributary

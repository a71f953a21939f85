#include "server/coordinator/job/first_rank.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tributary {

std::uint32_t rank_in_view(const JobMembers& members, std::uint32_t node, std::uint32_t local_rank) {
  const auto member = members.find(node);
  if (member == members.end() || local_rank >= member->second.join.local_world_size) return kNobody;
  const auto position = static_cast<std::uint32_t>(std::distance(members.begin(), member));
  return position * member->second.join.local_world_size + local_rank;
}

std::uint32_t one_that_lived(const JobMembers& members, JobId job) {
  std::uint32_t first = kNobody;
  for (const auto& [node, member] : members) {
    if (member.join.held_job != job) continue;
    for (const std::uint32_t local : member.join.living) first = std::min(first, rank_in_view(members, node, local));
  }
  return first;
}

std::uint32_t one_that_is_held(const JobMembers& members, JobId job, Round round) {
  std::uint32_t first = kNobody;
  for (const auto& [node, member] : members) {
    const JoinJob& join = member.join;
    if (join.held_job != job) continue;
    for (std::size_t i = 0; i < std::min(join.held_rounds.size(), join.held_ranks.size()); ++i) {
      if (join.held_rounds[i] == round) first = std::min(first, rank_in_view(members, node, join.held_ranks[i]));
    }
  }
  return first;
}

FirstRank choose_first(std::vector<std::byte> known, const JobMembers& members, JobId job, const ViewStart& start) {
  FirstRank first;
  if (start.anew()) {
    first.giver = 0;
  } else if (!known.empty()) {
    first.state = std::move(known);
  } else {
    first.giver = one_that_lived(members, job);
    if (first.giver == kNobody) first.giver = one_that_is_held(members, job, start.round);
  }
  return first;
}

}  // namespace tributary

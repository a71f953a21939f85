#include "server/coordinator/job/view_start.h"

#include <algorithm>
#include <optional>

namespace tributary {
namespace {

// The last round after the snapshot that all nodes can push again; the snapshot's own if there is none.
std::optional<Round> reach_of_redo(Round snapshot, const JobRecord& record, const JobMembers& members) {
  Round reach(~0ull);
  for (const auto& [node, member] : members) {
    const JoinJob& join = member.join;
    const bool some = join.redo_job == record.job && join.redo_last >= join.redo_first;
    if (some && join.redo_members != record.view_nodes.hash) return {};  // sums of other nodes' pushes
    if (some && join.redo_first.value > snapshot.value + 1) return {};
    if (some && record.view_nodes.first > snapshot.next()) return {};  // others' pushes would be missing
    reach = std::min(reach, some ? std::max(join.redo_last, snapshot) : snapshot);
  }
  return reach;
}

// Servers that go on with what they have in memory do not know what nodes have not said yet: every node must know it
// itself, of the round that the view begins at. (It is in snapshots.)
bool residuals_at(Round round, const JobRecord& record, const JobPlan& plan, const JobMembers& members) {
  if (!plan.push->keeps_residual()) return true;
  return std::ranges::all_of(members, [&](const auto& entry) {
    const JoinJob& join = entry.second.join;
    return join.redo_job == record.job && join.redo_members == record.view_nodes.hash && join.residual_first <= round &&
           round <= join.residual_last;
  });
}

// The round that all servers have in memory; none: some have nothing, or they are more than a round apart, or behind
// the snapshot.
std::optional<Round> round_in_memory(Round snapshot, const std::set<std::uint16_t>& shards, const KeptShards& kept) {
  Round slowest(~0ull);
  Version fastest;
  for (const std::uint16_t shard : shards) {
    const auto has = kept.find(shard);
    if (has == kept.end()) return std::nullopt;
    slowest = std::min(slowest, Round(has->second.min_version.value));
    fastest = std::max(fastest, has->second.max_version);
  }
  return slowest >= snapshot && fastest.value <= slowest.value + 1 ? std::optional(slowest) : std::nullopt;
}

}  // namespace

std::string ViewStart::in_words(std::size_t shards) const {
  if (anew()) return "fresh";
  const std::string snapshot = "the snapshot of round " + std::to_string(loaded.value);
  if (round == loaded && kept.empty()) return "from " + snapshot;
  const std::string at = "at round " + std::to_string(round.value);
  const std::size_t lost = shards - kept.size();
  if (lost == 0 && behind.empty()) return at + ", as the servers have it";
  const std::string of = " of " + std::to_string(shards) + " servers ";
  return at + ":" + (lost == 0 ? "" : " " + std::to_string(lost) + of + "load " + snapshot + ",") +
         (behind.empty() ? "" : " " + std::to_string(behind.size()) + of + "go on where they had come to,") +
         " and the nodes push again what came after it";
}

namespace {

// As far as the nodes can push again: to the round of `start`. A server with less than `least` was still being brought
// up to the others when its view ended: it goes on with that.
ViewStart pushed_again(ViewStart start, Version least, const std::set<std::uint16_t>& shards, const KeptShards& kept) {
  for (const std::uint16_t shard : shards) {
    const auto found = kept.find(shard);
    if (found == kept.end()) continue;
    const Version has = found->second.min_version;
    if (has < least) {
      if (has.value >= start.loaded.value) start.behind[shard] = has;
      continue;
    }
    start.kept.insert(shard);
    start.round = std::min(start.round, Round(has.value));
  }
  const auto too_far = [&](std::uint16_t shard) { return kept.at(shard).max_version.value > start.round.value + 1; };
  std::erase_if(start.kept, too_far);
  start.round = std::max(start.round, start.loaded);
  std::erase_if(start.behind, [&](const auto& entry) {
    const auto& [shard, has] = entry;
    if (too_far(shard)) return true;
    start.kept.insert(shard);
    return has.value >= start.round.value;
  });
  return start;
}

ViewStart start_of(bool resume, Round loaded, const JobRecord& record, const JobPlan& plan,
                   const std::set<std::uint16_t>& shards, const StateInMemory& memory) {
  const ViewStart at_snapshot{resume, loaded, loaded, {}};
  if (shards.empty() || !plan.has_rounds()) return at_snapshot;
  const std::optional<Round> in_memory = round_in_memory(loaded, shards, memory.shards);
  // Without a snapshot a lost shard has nothing to push upon.
  const std::optional<Round> reach = resume ? reach_of_redo(loaded, record, memory.members) : std::nullopt;
  const bool once_more = reach && *reach >= memory.reached;  // what was reached can be had again
  if (in_memory && residuals_at(*in_memory, record, plan, memory.members) &&
      (!reach || in_memory->value + 1 >= reach->value) && (*in_memory >= memory.reached || !once_more)) {
    return {resume, loaded, *in_memory, shards};
  }
  if (!reach) return at_snapshot;
  // From the round before, if that is all that a server lacks and the nodes know their residuals of that round; else
  // the server is brought up to the nodes' last round.
  const std::uint64_t before = std::max<std::uint64_t>(reach->value, 1) - 1;
  for (const Version least :
       {Version(once_more ? std::max(before, memory.reached.value) : before), Version(reach->value)}) {
    const ViewStart start = pushed_again({resume, loaded, *reach, {}}, least, shards, memory.shards);
    if (residuals_at(start.round, record, plan, memory.members)) return start;
  }
  return at_snapshot;
}

}  // namespace

ViewStart choose_start(bool resume, Round loaded, const JobRecord& record, const JobPlan& plan,
                       const std::set<std::uint16_t>& shards, const StateInMemory& memory) {
  ViewStart start = start_of(resume, loaded, record, plan, shards, memory);
  start.ahead = std::ranges::any_of(
      start.kept, [&](std::uint16_t shard) { return memory.shards.at(shard).max_version.value > start.round.value; });
  return start;
}

}  // namespace tributary

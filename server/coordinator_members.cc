// Who takes part in a view. Nodes are known by the rank that their trainers were started with, for as long as the job
// lives; in a view they count from 0, in that order.
//
// In an elastic job (membership.on_worker_loss = "continue") a view begins with the nodes that are there. Whoever was
// in the view before is waited for, if it is not known to be lost; a node that joins ends the running view, as one that
// leaves or is lost does. That costs what a loss costs, the round that is open: its samples are dealt out anew and
// computed again, and where a chunk has it already, it has the sum over the same samples.
#include <algorithm>

#include "common/checksum.h"
#include "common/encoding.h"
#include "server/coordinator_core.h"

namespace tributary {

std::uint64_t members_hash(const std::vector<std::uint32_t>& nodes, ViewId since) {
  Checksum64 sum;
  sum.add(nodes.data(), nodes.size() * sizeof(nodes[0]));
  const std::uint64_t words = since.value;  // ends with a 0, as no list of nodes does
  if (words != 0) sum.add(&words, sizeof words);
  return sum.value();
}

// What its first view is to have: as many as those who are there say. (Who said more may have gone for good.)
std::uint32_t CoordinatorCore::first_nodes(const Job& job) {
  std::uint32_t nodes = 0;
  for (const auto& [node, member] : job.members) nodes = std::max(nodes, member.join.nodes);
  return nodes;
}

// Are all there that the next view is to have?
bool CoordinatorCore::gathered(const Job& job, std::uint64_t now_ms) const {
  if (!is_elastic(job.config)) return job.members.size() == job.nodes;
  if (job.members.size() < job.config.membership.min_nodes) return false;
  if (job.gather_until_ms == 0) return job.members.size() >= first_nodes(job);
  return now_ms >= job.gather_until_ms ||
         std::ranges::all_of(job.expected, [&](const auto& entry) { return job.members.contains(entry.first); });
}

// The first node has joined for a view. Without a view before, in this process's memory, the record may know one.
void CoordinatorCore::await_members(Job& job, std::uint64_t now_ms) {
  if (!is_elastic(job.config) || job.gather_until_ms != 0 || job.record.members.empty()) return;
  for (const std::uint32_t node : job.record.members) job.expected[node] = 0;
  job.gather_until_ms = now_ms + job.config.membership.rejoin_ms;
}

// A view ends, and its nodes attach again.
void CoordinatorCore::await_again(Job& job, std::uint64_t now_ms) {
  job.expected.clear();
  for (const auto& [node, member] : job.members) job.expected[node] = member.worker;
  job.gather_until_ms = now_ms + job.config.membership.rejoin_ms;
}

// That worker will not attach again: the others need not wait for it.
void CoordinatorCore::await_not(Job& job, std::uint64_t worker, std::uint64_t now_ms) {
  const auto gone = std::erase_if(job.expected, [&](const auto& entry) { return entry.second == worker; });
  if (gone > 0) open_if_complete(job, now_ms);
}

// The job has come to an end in good order: the next time it begins like a new one.
void CoordinatorCore::await_nobody(Job& job) {
  job.expected.clear();
  job.gather_until_ms = 0;
  job.record.members.clear();
}

// What the view that opens is. Before its number is raised.
void CoordinatorCore::settle_members(Job& job) {
  job.record.members.clear();
  for (const auto& [node, member] : job.members) job.record.members.push_back(node);
  job.nodes = static_cast<std::uint32_t>(job.members.size());
  job.record.world_size = job.nodes * job.members.begin()->second.join.local_world_size;
  const auto& members = job.record.members;
  ViewNodes nodes{members_hash(members, job.began.since), job.began.since, job.began.first};
  if (job.began.hash != 0 && job.began.hash != nodes.hash) {
    nodes.since = job.record.view.next();
    nodes.hash = members_hash(members, nodes.since);
  }
  job.record.view_nodes = nodes;
  job.holders.clear();
  for (const auto& [node, member] : job.members) job.holders[node] = {member.worker, member.join.local_world_size};
}

// A server may be a round further, with some chunks, than where a view begins: it was brought there by the nodes of a
// view before. What lies beyond that is made (again) by these.
void CoordinatorCore::settle_first_round(Job& job) {
  Round most = job.start;
  for (const std::uint16_t shard : job.kept_open) most = std::max(most, Round(job.kept.at(shard).max_version.value));
  ViewNodes& nodes = job.record.view_nodes;
  const bool others = nodes.hash != job.began.hash;
  nodes.first = others ? most.next() : std::min(nodes.first, most.next());
}

// May the others go on when this node leaves a running view?
bool CoordinatorCore::goes_on_without(const Job& job, std::uint32_t node) const {
  if (!is_elastic(job.config) || draining_ || job.stop_requested) return false;
  const auto staying = std::ranges::count_if(
      job.members, [&](const auto& entry) { return entry.first != node && !entry.second.leaving; });
  return static_cast<std::uint32_t>(staying) >= job.config.membership.min_nodes;
}

// A node wants to take part while a view runs or opens.
Status CoordinatorCore::let_in(Job& job, const JoinJob& m, std::uint64_t now_ms) {
  const bool ending = std::ranges::any_of(job.members, [](const auto& entry) { return entry.second.left.has_value(); });
  if (job.phase == Phase::kOpening || ending || job.stop_requested) {
    return fail(ErrorCode::kUnavailable,
                in_words(job) +
                    (job.phase == Phase::kOpening ? " is just beginning a view; the next one can have node "
                                                  : " is about to end; a later run can have node ") +
                    std::to_string(m.node.value));
  }
  if (Status same = same_as_others(job, m); !same) return same;  // who does not fit disturbs nobody
  if (!has_rounds(job.config) || make_encoding(job.config.push)->keeps_residual()) {
    // It will go back to a snapshot: to a new one.
    if (!job.joins_after) job.joins_after = job.record.committed;
    if (job.record.committed <= *job.joins_after) {
      return fail(ErrorCode::kUnavailable,
                  in_words(job) + " can have node " + std::to_string(m.node.value) +
                      " after its next snapshot, because its mode or encoding goes back to one when nodes change");
    }
  }
  restart(job, "node " + std::to_string(m.node.value) + " joins", now_ms);
  return {};
}

std::string CoordinatorCore::awaited(const Job& job) {
  std::string nodes;
  const auto add = [&](std::uint32_t node) {
    if (!job.members.contains(node)) nodes += " node " + std::to_string(node);
  };
  if (is_elastic(job.config) && job.gather_until_ms != 0) {
    for (const auto& [node, worker] : job.expected) add(node);
    const std::uint32_t least = job.config.membership.min_nodes;
    if (nodes.empty() && job.members.size() < least) nodes = " more nodes (of at least " + std::to_string(least) + ")";
  } else if (is_elastic(job.config)) {
    const std::uint32_t all = first_nodes(job);
    if (job.members.size() < all) {
      nodes = " " + std::to_string(all - job.members.size()) + " more of " + std::to_string(all) + " nodes";
    }
  } else {
    for (std::uint32_t node = 0; node < job.nodes; ++node) add(node);
  }
  return nodes;
}

}  // namespace tributary

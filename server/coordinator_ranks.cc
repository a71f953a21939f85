// What trainers keep with the state of a job, beside the parameters: generators of random numbers, samplers of their
// own (Session::keep). A rank gives it for the round that a snapshot is named for, and for the round that it stops
// after; it is committed with the snapshot, into the job's record, and comes back when a view begins at that round. A
// view that begins where servers were, and no snapshot is, has what ranks gave for that round in the view before.
#include <algorithm>
#include <cstdint>

#include "server/coordinator_core.h"

namespace tributary {
namespace {

// Of a rank, until they are committed or too old: the round of a snapshot that is under way, and of a stop meanwhile.
constexpr std::size_t kPendingRounds = 3;

std::size_t total_bytes(const RankStates& states) {
  std::size_t bytes = 0;
  for (const auto& [rank, state] : states) bytes += state.size();
  return bytes;
}

}  // namespace

void CoordinatorCore::on(PeerId from, const NodeRankState& m, std::uint64_t) {
  const Worker* worker = worker_at(from);
  Job* const known = job_with(m.job);
  if (!worker || !known || !known->on_servers()) return;
  Job& job = *known;
  // The view may have just ended. A later one may have gone back. What is not of the worker's own ranks is left out (a
  // coordinator that is new does not know whose they are).
  if (job.record.view != m.view || m.kept.round < job.record.committed) return;
  const auto holder = job.holders.find(m.node.value);
  if (holder == job.holders.end() || holder->second.worker != worker->hello.incarnation ||
      m.local_rank >= std::min<std::uint64_t>(holder->second.ranks, kMaxRankStates)) {
    return;
  }
  const RankKey rank{m.node.value, m.local_rank};
  auto& pending = job.rank_states[rank];
  pending[m.kept.round] = m.kept.state;
  if (pending.size() > kPendingRounds) pending.erase(pending.begin());
  if (job.record.initialised && m.kept.round == job.record.committed) {  // the snapshot was faster
    commit_rank_states(job, m.kept.round);
    job.unrecorded = true;  // saved with the next tick: those of other ranks follow
  }
}

// The record is about to be saved with this snapshot.
void CoordinatorCore::commit_rank_states(Job& job, Round round) {
  if (job.record.committed != round) job.record.rank_states.clear();
  std::size_t bytes = total_bytes(job.record.rank_states);
  for (auto& [rank, pending] : job.rank_states) {
    const auto kept = pending.find(round);
    if (kept != pending.end()) {
      bytes += kept->second.size();
      if (const auto replaced = job.record.rank_states.find(rank); replaced != job.record.rank_states.end()) {
        bytes -= replaced->second.size();
      }
      if (bytes > kMaxRankStatesBytes) {
        output_.log("what ranks keep of " + in_words(job) + " is more than " + std::to_string(kMaxRankStatesBytes) +
                    " bytes together; that of node " + std::to_string(rank.node) + " rank " +
                    std::to_string(rank.local_rank) + " is left out");
        bytes -= kept->second.size();
      } else {
        job.record.rank_states[rank] = std::move(kept->second);
      }
    }
    std::erase_if(pending, [&](const auto& entry) { return entry.first <= round; });
  }
}

// A view is about to begin: what belongs to other rounds is of rounds that are over, or will be gone through again.
void CoordinatorCore::keep_rank_states(Job& job) {
  const bool anew = !job.resume && job.kept_open.empty();
  for (auto& [rank, pending] : job.rank_states) {
    std::erase_if(pending, [&](const auto& kept) { return anew || kept.first != job.start; });
  }
  std::size_t bytes = 0;
  std::erase_if(job.rank_states, [&](const auto& entry) {
    for (const auto& [round, state] : entry.second) bytes += state.size();
    return entry.second.empty() || bytes > kMaxRankStatesBytes;
  });
}

// A view begins at the committed snapshot: those whose state is not there begin it anew, which nobody else would
// notice.
void CoordinatorCore::miss_rank_states(const Job& job) {
  const RankStates& states = job.record.rank_states;
  if (states.empty() || !job.resume || job.start != job.record.committed) return;
  std::size_t ranks = 0, there = 0;
  for (const auto& [node, holder] : job.holders) {
    ranks += holder.ranks;
    for (auto at = states.lower_bound({node, 0}); at != states.end() && at->first.node == node; ++at) {
      there += at->first.local_rank < holder.ranks ? 1 : 0;
    }
  }
  if (there == ranks) return;
  output_.log("of " + in_words(job) + " " + std::to_string(ranks - there) + " of " + std::to_string(ranks) +
              " ranks have nothing that they kept with the snapshot of round " +
              std::to_string(job.record.committed.value) + ", and begin that anew");
}

// For the node's welcome: what its ranks gave for the round that the view begins at.
std::vector<std::vector<std::byte>> CoordinatorCore::rank_states_of(const Job& job, std::uint32_t node) {
  std::vector<std::vector<std::byte>> states;
  const auto add = [&](const RankKey& rank, const std::vector<std::byte>& state) {
    if (rank.node != node || rank.local_rank >= kMaxRankStates) return;
    states.resize(std::max<std::size_t>(states.size(), rank.local_rank + 1));
    states[rank.local_rank] = state;
  };
  if (job.resume && job.start == job.record.committed) {
    for (const auto& [rank, state] : job.record.rank_states) add(rank, state);
  } else {
    for (const auto& [rank, pending] : job.rank_states) {
      if (const auto kept = pending.find(job.start); kept != pending.end()) add(rank, kept->second);
    }
  }
  return states;
}

}  // namespace tributary

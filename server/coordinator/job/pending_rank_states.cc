#include "server/coordinator/job/pending_rank_states.h"

#include <algorithm>
#include <utility>

namespace tributary {
namespace {

// States of one rank that are not committed yet: of a snapshot's round that is under way, and of a stop meanwhile.
constexpr std::size_t kPendingRounds = 3;

std::size_t total_bytes(const RankStates& states) {
  std::size_t bytes = 0;
  for (const auto& [rank, state] : states) bytes += state.size();
  return bytes;
}

bool is_there(const std::vector<std::byte>& state, const PendingRankStates::There& there) {
  const LargePart large = StateHead::of(state).large;
  return !large || there(large);
}

}  // namespace

// Drops the states of other rounds: these rounds are over, or will be repeated.
void PendingRankStates::begin_view(std::map<std::uint32_t, Holder> holders, Round start, bool anew,
                                   std::optional<Round> committed) {
  holders_ = std::move(holders);
  for (auto& [rank, pending] : states_) {
    std::erase_if(pending, [&](const auto& kept) { return anew || (kept.first != start && kept.first != committed); });
  }
  std::size_t bytes = 0;
  std::erase_if(states_, [&](const auto& entry) {
    for (const auto& [round, state] : entry.second) bytes += state.size();
    return entry.second.empty() || bytes > kMaxRankStatesBytes;
  });
}

// Ignores states of ranks that are not the worker's own. (A new coordinator does not know whose they are.)
bool PendingRankStates::give(std::uint64_t worker, const NodeRankState& m) {
  const auto holder = holders_.find(m.node.value);
  if (holder == holders_.end() || holder->second.worker != worker ||
      m.local_rank >= std::min<std::uint64_t>(holder->second.ranks, kMaxRankStates)) {
    return false;
  }
  auto& pending = states_[RankKey{m.node.value, m.local_rank}];
  pending[m.kept.round] = m.kept.state;
  if (pending.size() > kPendingRounds) pending.erase(pending.begin());
  return true;
}

std::vector<std::string> PendingRankStates::commit(JobRecord& record, Round round, const There& there) {
  std::vector<std::string> left_out;
  if (record.committed != round) record.rank_states.clear();
  std::size_t bytes = total_bytes(record.rank_states);
  for (auto& [rank, pending] : states_) {
    const auto kept = pending.find(round);
    const bool waits = kept != pending.end() && !is_there(kept->second, there);
    if (kept != pending.end() && !waits) {
      const auto replaced = record.rank_states.find(rank);
      const std::size_t after =
          bytes + kept->second.size() - (replaced == record.rank_states.end() ? 0 : replaced->second.size());
      if (after > kMaxRankStatesBytes) {
        left_out.push_back("is more than " + std::to_string(kMaxRankStatesBytes) + " bytes together; that of node " +
                           std::to_string(rank.node) + " rank " + std::to_string(rank.local_rank) + " is left out");
      } else {
        bytes = after;
        record.rank_states[rank] = std::move(kept->second);
      }
    }
    std::erase_if(pending, [&](const auto& entry) { return entry.first < round || (entry.first == round && !waits); });
  }
  return left_out;
}

RankStates PendingRankStates::of(Round round, const There& there) const {
  RankStates states;
  std::size_t bytes = 0;
  for (const auto& [rank, pending] : states_) {
    const auto kept = pending.find(round);
    if (kept == pending.end() || !is_there(kept->second, there)) continue;
    bytes += kept->second.size();
    if (bytes <= kMaxRankStatesBytes) states.emplace(rank, kept->second);
  }
  return states;
}

bool PendingRankStates::can_commit(Round round, const There& there) const {
  return std::ranges::any_of(states_, [&](const auto& entry) {
    const auto kept = entry.second.find(round);
    return kept != entry.second.end() && is_there(kept->second, there);
  });
}

void PendingRankStates::fill_in(JobWelcome& welcome, std::uint32_t node, const RankStates* committed, Round start,
                                const There& there) const {
  std::vector<std::vector<std::byte>>& states = welcome.rank_states;
  const auto add = [&](const RankKey& rank, const std::vector<std::byte>& state) {
    if (rank.node != node || rank.local_rank >= kMaxRankStates || !is_there(state, there)) return;
    states.resize(std::max<std::size_t>(states.size(), rank.local_rank + 1));
    states[rank.local_rank] = state;
  };
  // Committed states come last and win: they are of this round.
  for (const auto& [rank, pending] : states_) {
    if (const auto kept = pending.find(start); kept != pending.end()) add(rank, kept->second);
  }
  if (!committed) return;
  for (const auto& [rank, state] : *committed) add(rank, state);
}

std::vector<std::byte> PendingRankStates::first_whole(const RankStates* committed, Round start,
                                                      const There& there) const {
  const auto serves = [&](const std::vector<std::byte>& state) {
    return !state.empty() && StateHead::of(state).whole && is_there(state, there);
  };
  if (committed) {
    for (const auto& [rank, state] : *committed) {
      if (serves(state)) return state;
    }
  }
  for (const auto& [rank, pending] : states_) {
    if (const auto kept = pending.find(start); kept != pending.end() && serves(kept->second)) return kept->second;
  }
  return {};
}

std::set<LargePart> PendingRankStates::large_parts(std::optional<Round> round) const {
  std::set<LargePart> parts;
  for (const auto& [rank, pending] : states_) {
    for (const auto& [of, state] : pending) {
      const LargePart large = StateHead::of(state).large;
      if (large && (!round || of == *round)) parts.insert(large);
    }
  }
  return parts;
}

PendingRankStates::Coverage PendingRankStates::coverage(const RankStates& committed) const {
  Coverage coverage;
  for (const auto& [node, holder] : holders_) {
    coverage.ranks += holder.ranks;
    for (auto at = committed.lower_bound({node, 0}); at != committed.end() && at->first.node == node; ++at) {
      coverage.there += at->first.local_rank < holder.ranks ? 1 : 0;
    }
  }
  return coverage;
}

}  // namespace tributary

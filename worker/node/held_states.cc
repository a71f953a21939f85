#include "worker/node/held_states.h"

#include <algorithm>
#include <utility>

namespace tributary {

Status HeldStates::hold(const std::string& job, std::uint32_t local_rank, KeptState state, std::uint64_t now_ms) {
  if (!jobs_.contains(job) && jobs_.size() >= kMaxJobs) forget_oldest();
  Held& held = jobs_[job];
  held.seen_ms = now_ms;
  auto& rounds = held.ranks[local_rank].rounds;
  const auto drop = [&](auto at) {
    held.bytes -= at->second.state.state.state.size();
    return rounds.erase(at);
  };
  if (const auto before = rounds.find(state.round()); before != rounds.end()) drop(before);
  while (rounds.size() >= kRounds) drop(rounds.begin());
  std::size_t large = state.large ? 1 : 0;
  for (auto at = rounds.end(); at != rounds.begin();) {
    --at;
    if (at->second.state.large && ++large > kLargeRounds) at = drop(at);  // without it the rest is of no use
  }
  const std::size_t small = state.state.state.size();
  const std::uint64_t bytes = small + (state.large ? state.large->bytes().size() : 0);
  const auto refused = [&](const std::string& why) {
    return fail(ErrorCode::kLimit, job_in_words(job) + ": what local rank " + std::to_string(local_rank) +
                                       " keeps of round " + std::to_string(state.round().value) + " (" +
                                       std::to_string(bytes) +
                                       " bytes) is not held for whoever takes its place: " + why);
  };
  if (held.bytes + small > kMaxJobBytes) {
    return refused(std::to_string(held.bytes) + " of " + std::to_string(kMaxJobBytes) +
                   " bytes a job are taken beside large parts; keep less, or use fewer ranks per node");
  }
  auto share = BudgetShare::take(budget_, bytes);
  if (!share) {
    return refused(std::to_string(budget_->used()) + " of " + std::to_string(budget_->limit()) +
                   " are taken; raise [limits] max_shared_memory in worker.toml, or keep less");
  }
  held.bytes += small;
  const Round round = state.round();
  rounds.emplace(round, Counted{std::move(state), std::move(share)});
  return {};
}

void HeldStates::given(const std::string& job, std::uint32_t local_rank, Round round) {
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return;
  const auto rank = held->second.ranks.find(local_rank);
  if (rank == held->second.ranks.end()) return;
  const auto at = rank->second.rounds.find(round);
  if (at == rank->second.rounds.end() || !at->second.state.large) return;
  auto& given = rank->second.given;
  const KeptState& state = at->second.state;
  given.insert_or_assign(round, Counted{{{round, state.head().before({})}, state.large}, at->second.share});
  if (given.size() > kLargeRounds) given.erase(given.begin());
}

void HeldStates::begin(const std::string& job, JobId id, NodeRank node, Round round, bool anew, std::uint64_t now_ms) {
  auto held = jobs_.find(job);
  if (held == jobs_.end()) {
    if (jobs_.size() >= kMaxJobs) forget_oldest();
    held = jobs_.emplace(job, Held()).first;
  }
  held->second.seen_ms = now_ms;
  anew = std::exchange(held->second.id, id) != id || anew;
  anew = std::exchange(held->second.node, node) != node || anew;
  for (auto& [rank, states] : held->second.ranks) {
    std::erase_if(states.rounds, [&](const auto& one) {
      const bool goes = anew || one.first != round;
      if (goes) held->second.bytes -= one.second.state.state.state.size();
      return goes;
    });
    std::erase_if(states.given, [&](const auto& one) { return anew || one.first > round; });
  }
}

void HeldStates::describe(const std::string& job, JoinJob& join) const {
  const auto held = jobs_.find(job);
  if (held == jobs_.end() || held->second.node != join.node) return;
  join.held_job = held->second.id;
  for (const auto& [rank, states] : held->second.ranks) {
    if (rank >= kMaxRankStates) break;
    for (const auto& [round, counted] : states.rounds) {
      if (!counted.state.head().whole) continue;
      join.held_rounds.push_back(round);
      join.held_ranks.push_back(rank);
    }
  }
}

void HeldStates::forget_oldest() {
  jobs_.erase(std::ranges::min_element(jobs_, {}, [](const auto& entry) { return entry.second.seen_ms; }));
}

const KeptState* HeldStates::of(const std::string& job, std::uint32_t local_rank, Round round) const {
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return nullptr;
  const auto rank = held->second.ranks.find(local_rank);
  if (rank == held->second.ranks.end()) return nullptr;
  const auto state = rank->second.rounds.find(round);
  return state == rank->second.rounds.end() ? nullptr : &state->second.state;
}

std::shared_ptr<const SealedBytes> HeldStates::large(const LargePart& large) const {
  for (const auto& [name, held] : jobs_) {
    for (const auto& [rank, states] : held.ranks) {
      for (const auto* rounds : {&states.rounds, &states.given}) {
        for (const auto& [round, counted] : *rounds) {
          if (counted.state.large && counted.state.head().large == large) return counted.state.large;
        }
      }
    }
  }
  return nullptr;
}

void HeldStates::in_use(const std::string& job, std::uint64_t now_ms) {
  if (const auto held = jobs_.find(job); held != jobs_.end()) held->second.seen_ms = now_ms;
}

void HeldStates::tick(std::uint64_t now_ms) {
  std::erase_if(jobs_, [&](const auto& entry) { return now_ms > entry.second.seen_ms + kHoldMs; });
}

}  // namespace tributary

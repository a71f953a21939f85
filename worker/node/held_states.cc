#include "worker/node/held_states.h"

#include <algorithm>
#include <utility>

namespace tributary {

void HeldStates::hold(const std::string& job, std::uint32_t local_rank, const RankState& state, std::uint64_t now_ms) {
  if (!jobs_.contains(job) && jobs_.size() >= kMaxJobs) forget_oldest();
  Held& held = jobs_[job];
  held.seen_ms = now_ms;
  auto& rounds = held.ranks[local_rank];
  const auto drop = [&](auto at) {
    held.bytes -= at->second.size();
    rounds.erase(at);
  };
  if (const auto before = rounds.find(state.round); before != rounds.end()) drop(before);
  while (rounds.size() >= kRounds) drop(rounds.begin());
  if (held.bytes + state.state.size() > kMaxJobBytes) return;
  held.bytes += state.state.size();
  rounds[state.round] = state.state;
}

void HeldStates::begin(const std::string& job, JobId id, Round round, bool anew, std::uint64_t now_ms) {
  auto held = jobs_.find(job);
  if (held == jobs_.end()) {
    if (jobs_.size() >= kMaxJobs) forget_oldest();
    held = jobs_.emplace(job, Held()).first;
  }
  held->second.seen_ms = now_ms;
  anew = std::exchange(held->second.id, id) != id || anew;
  for (auto& [rank, rounds] : held->second.ranks) {
    std::erase_if(rounds, [&](const auto& one) {
      const bool goes = anew || one.first != round;
      if (goes) held->second.bytes -= one.second.size();
      return goes;
    });
  }
}

void HeldStates::describe(const std::string& job, JoinJob& join) const {
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return;
  for (const auto& [rank, rounds] : held->second.ranks) {
    if (rounds.empty()) continue;
    join.held_job = held->second.id;
    for (const auto& [round, state] : rounds) {
      join.held_rounds.push_back(round);
      join.held_states.push_back(state);
    }
    return;
  }
}

void HeldStates::forget_oldest() {
  jobs_.erase(std::ranges::min_element(jobs_, {}, [](const auto& entry) { return entry.second.seen_ms; }));
}

std::span<const std::byte> HeldStates::of(const std::string& job, std::uint32_t local_rank, Round round) const {
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return {};
  const auto rank = held->second.ranks.find(local_rank);
  if (rank == held->second.ranks.end()) return {};
  const auto state = rank->second.find(round);
  return state == rank->second.end() ? std::span<const std::byte>() : std::span<const std::byte>(state->second);
}

std::span<const std::byte> HeldStates::first(const std::string& job, Round round) const {
  const auto held = jobs_.find(job);
  if (held == jobs_.end()) return {};
  for (const auto& [rank, rounds] : held->second.ranks) {
    if (const auto state = rounds.find(round); state != rounds.end()) return state->second;
  }
  return {};
}

void HeldStates::in_use(const std::string& job, std::uint64_t now_ms) {
  if (const auto held = jobs_.find(job); held != jobs_.end()) held->second.seen_ms = now_ms;
}

void HeldStates::tick(std::uint64_t now_ms) {
  std::erase_if(jobs_, [&](const auto& entry) { return now_ms > entry.second.seen_ms + kHoldMs; });
}

}  // namespace tributary

#include "server/coordinator/job/job_values.h"

#include <algorithm>
#include <utility>

#include "common/base/printed.h"

namespace tributary {

void JobValues::begin(JobId job, ViewId view, Round round, std::uint32_t ranks) {
  job_ = job;
  view_ = view;
  ranks_ = ranks;
  open_.clear();
  answers_.begin(job, round);
}

Status JobValues::check(const SharedValues& said, std::uint32_t first_rank, std::uint32_t ranks) {
  if (said.complete) return {};
  for (const RankValue& value : said.values) {
    if (value.rank >= first_rank && value.rank - first_rank < ranks) continue;
    return fail(ErrorCode::kInvalidArgument, "a node gives " + said.key().in_words() + " of " +
                                                 rank_in_words(value.rank) + ", which is not one of its " +
                                                 std::to_string(ranks) + " ranks from " + std::to_string(first_rank) +
                                                 " on; each worker speaks for the ranks that it has");
  }
  return {};
}

RankValues JobValues::answer_of(const SharedValues& values) const {
  return {job_, view_, values, {}, {}};
}

Result<JobValues::Reply> JobValues::on(const SharedValues& said, std::uint64_t now_ms) {
  const ValueKey key = said.key();
  if (const SharedValues* answer = answers_.of(key)) {
    if (said == *answer) return Reply();
    return Reply{.to_author = answer_of(*answer), .to_all = {}};
  }
  if (said.complete) return take_answer(said);
  if (said.values.empty()) return Reply();
  if (!open_.contains(key) && open_.size() >= kMaxOpen) {
    return fail(ErrorCode::kLimit, rank_in_words(said.values.front().rank) + " gives " + key.in_words() + " while " +
                                       std::to_string(kMaxOpen) +
                                       " others are open, the most that can be: all ranks make the same calls");
  }
  Open& open = open_.try_emplace(key, Open{.values = {}, .bytes = 0, .since_ms = now_ms}).first->second;
  if (Status taken = take_values(said, open); !taken) return tl::unexpected(taken.error());
  if (open.values.size() < ranks_) return Reply();
  SharedValues answer{key.round, key.index, true, {}};
  for (const auto& [rank, data] : open.values) answer.values.push_back({rank, data});
  return take_answer(answer);
}

Result<JobValues::Reply> JobValues::take_answer(const SharedValues& said) {
  answers_.add(said);
  if (open_.erase(said.key()) == 0) return Reply();
  return Reply{.to_author = {}, .to_all = answer_of(said)};
}

Status JobValues::take_values(const SharedValues& said, Open& open) {
  for (const RankValue& value : said.values) {
    const auto [at, first] = open.values.try_emplace(value.rank, value.data);
    if (!first && at->second != value.data) {
      return fail(ErrorCode::kInvalidArgument, rank_in_words(value.rank) + " gave " + said.key().in_words() +
                                                   " a second time with other bytes (" +
                                                   std::to_string(at->second.size()) + ", then " +
                                                   std::to_string(value.data.size()) + "): it is given once");
    }
    if (first) open.bytes += SharedValues::bytes_of(value);
  }
  if (open.bytes <= kMaxAnswerBytes) return {};
  return fail(ErrorCode::kLimit, said.key().in_words() + " of " + std::to_string(open.values.size()) + " ranks takes " +
                                     std::to_string(open.bytes) + " bytes, over the limit of " +
                                     std::to_string(kMaxAnswerBytes) + " of all ranks together: give less");
}

std::optional<Error> JobValues::mistake(std::uint64_t now_ms) const {
  std::vector<const OpenKey*> old;
  for (const OpenKey& one : open_) {
    if (now_ms >= one.second.since_ms + kPatienceMs) old.push_back(&one);
  }
  if (old.size() < 2) return std::nullopt;
  const auto& [key, open] = *old[0];
  const auto& [other_key, other] = *old[1];
  const std::uint32_t rank = open.values.begin()->first;
  const auto elsewhere =
      std::ranges::find_if(other.values, [&](const auto& value) { return !open.values.contains(value.first); });
  const std::uint32_t another = (elsewhere == other.values.end() ? other.values.begin() : elsewhere)->first;
  return Error{ErrorCode::kInvalidArgument, rank_in_words(rank) + " is at " + key.in_words() + ", " +
                                                rank_in_words(another) + " at " + other_key.in_words() +
                                                ": all ranks make the same calls, in the same order"};
}

std::optional<std::string> JobValues::waits_for(std::uint32_t first_rank, std::uint32_t ranks,
                                                std::uint64_t now_ms) const {
  for (const auto& [key, open] : open_) {
    if (now_ms < open.since_ms + kPatienceMs) continue;
    for (std::uint32_t rank = first_rank; rank - first_rank < ranks; ++rank) {
      if (open.values.contains(rank)) continue;
      return rank_in_words(open.values.begin()->first) + " waits for " + key.in_words() + " of " + rank_in_words(rank) +
             ": all ranks make the same calls";
    }
  }
  return std::nullopt;
}

std::string JobValues::waits() const {
  if (open_.empty()) return {};
  const auto& [key, open] = *open_.begin();
  std::vector<std::string> missing;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!open.values.contains(rank)) missing.push_back(rank_in_words(rank));
  }
  return rank_in_words(open.values.begin()->first) + " waits for " + key.in_words() + " of " + listed(missing);
}

RankValues JobValues::give_up(const Error& why) {
  const ValueKey key = open_.empty() ? ValueKey() : open_.begin()->first;
  open_.clear();
  return {job_, view_, {key.round, key.index, false, {}}, why.code, why.message};
}

}  // namespace tributary

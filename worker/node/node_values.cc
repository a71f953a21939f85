#include "worker/node/node_values.h"

#include <algorithm>
#include <utility>

namespace tributary {
namespace {

Status broken(std::string why) {
  return fail(ErrorCode::kInvalidArgument, std::move(why));
}

}  // namespace

Result<NodeValues::Actions> NodeValues::on(std::uint32_t local_rank, const SharedValues& said, std::uint64_t now_ms) {
  const ValueKey key = said.key();
  const SharedValues* known = answers_->of(key);
  if (said.complete) return known ? Actions() : learn(said);
  if (known && !elastic_) return Actions{.say = {}, .answered = {local_rank}, .answer = *known};
  if (Status given = give(local_rank, said, now_ms); !given) return tl::unexpected(given.error());
  const Open& open = open_.at(key);
  if (open.values.size() < ranks_ && !known) return Actions();
  return Actions{.say = {said_of(key, open)}, .answered = {}, .answer = {}};
}

Status NodeValues::give(std::uint32_t local_rank, const SharedValues& said, std::uint64_t now_ms) {
  const std::string rank = "rank " + std::to_string(first_rank_ + local_rank);
  if (said.values.size() != 1) {
    return broken(rank + " gave " + std::to_string(said.values.size()) + " values as its " + said.key().in_words() +
                  "; it is one");
  }
  for (const auto& [key, open] : open_) {
    const auto given = open.values.find(local_rank);
    if (given == open.values.end()) continue;
    if (key != said.key()) {
      return broken(rank + " gave " + said.key().in_words() + " while it waits for " + key.in_words() +
                    "; a rank waits for each answer");
    }
    if (given->second != said.values.front().data) {
      return broken(rank + " gave " + key.in_words() + " a second time with other bytes; it is given once");
    }
  }
  const Open fresh{.values = {}, .since_ms = now_ms, .next_ms = now_ms + kRepeatMs};
  open_.try_emplace(said.key(), fresh).first->second.values.try_emplace(local_rank, said.values.front().data);
  return {};
}

// A trainer brings it: the coordinator is to know it, too.
NodeValues::Actions NodeValues::learn(const SharedValues& answer) {
  const RankValues said{job_, view_, answer, {}, {}};
  Actions actions;
  if (!elastic_) actions = answer_all(answer);
  actions.say.push_back(said);
  if (!elastic_) return actions;
  answers_->add(answer);
  if (const auto open = open_.find(answer.key()); open != open_.end()) {
    actions.say.push_back(said_of(open->first, open->second));
  }
  return actions;
}

NodeValues::Actions NodeValues::on(const SharedValues& answer) {
  return answer.complete ? answer_all(answer) : Actions();
}

// To those that wait for it.
NodeValues::Actions NodeValues::answer_all(const SharedValues& answer) {
  answers_->add(answer);
  Actions actions{.say = {}, .answered = {}, .answer = answer};
  const auto open = open_.find(answer.key());
  if (open == open_.end()) return actions;
  for (const auto& [local_rank, data] : open->second.values) actions.answered.push_back(local_rank);
  open_.erase(open);
  return actions;
}

RankValues NodeValues::said_of(ValueKey key, const Open& open) const {
  RankValues said{job_, view_, {key.round, key.index, false, {}}, {}, {}};
  for (const auto& [local_rank, data] : open.values) said.shared.values.push_back({first_rank_ + local_rank, data});
  return said;
}

std::vector<RankValues> NodeValues::all() const {
  std::vector<RankValues> said;
  for (const SharedValues* answer : answers_->all()) said.push_back({job_, view_, *answer, {}, {}});
  for (const auto& [key, open] : open_) said.push_back(said_of(key, open));
  return said;
}

// Also what not all local ranks have given: the coordinator may know the answer.
std::vector<RankValues> NodeValues::tick(std::uint64_t now_ms) {
  std::vector<RankValues> said;
  for (auto& [key, open] : open_) {
    if (now_ms < open.next_ms) continue;
    open.next_ms = now_ms + kRepeatMs;
    said.push_back(said_of(key, open));
  }
  return said;
}

bool NodeValues::waits_for(std::uint32_t local_rank, std::uint64_t now_ms) const {
  return std::ranges::any_of(open_, [&](const auto& entry) {
    return now_ms >= entry.second.since_ms + kPatienceMs && !entry.second.values.contains(local_rank);
  });
}

std::shared_ptr<ValueAnswers> KeptAnswers::begin(const std::string& name, JobId id, Round round, std::uint64_t now_ms) {
  if (jobs_.size() >= kMaxJobs && !jobs_.contains(name)) {
    jobs_.erase(std::ranges::min_element(jobs_, {}, [](const auto& entry) { return entry.second.seen_ms; }));
  }
  Kept& kept = jobs_[name];
  kept.seen_ms = now_ms;
  kept.answers->begin(id, round);
  return kept.answers;
}

void KeptAnswers::in_use(const std::string& name, std::uint64_t now_ms) {
  if (const auto kept = jobs_.find(name); kept != jobs_.end()) kept->second.seen_ms = now_ms;
}

void KeptAnswers::tick(std::uint64_t now_ms) {
  std::erase_if(jobs_, [&](const auto& entry) { return now_ms > entry.second.seen_ms + kKeepMs; });
}

}  // namespace tributary

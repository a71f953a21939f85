// ValueAnswers: the answers to a job's newest keys (common/wire/rank_values.h), from view to view. A process that
// continues from a loop's last top asks again, and gets the same bytes. The coordinator has one, each worker, and each
// trainer in its recovery handle: a process that has passed a key knows its answer, and sends it first in the next view.
// Pure.
//
// Invariants: at most kRounds rounds, the newest that have answers, and round 0, whose first calls a process makes
// again whenever it starts; of a round at most kMaxRoundBytes, those of its last calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "common/wire/rank_values.h"

namespace tributary {

class ValueAnswers {
 public:
  static constexpr std::size_t kRounds = 4;                // as kMaxHeldRounds: a view may begin at each of them
  static constexpr std::size_t kMaxRoundBytes = 8u << 20;  // as SharedValues::bytes() counts

  // Begins a view of the job after this round. Answers of later rounds, or of another job, are dropped.
  void begin(JobId job, Round round) {
    if (job != job_) rounds_.clear();
    job_ = job;
    rounds_.erase(rounds_.upper_bound(round), rounds_.end());
  }
  // Returns the answer; null: it is not known.
  const SharedValues* of(ValueKey key) const {
    const auto round = rounds_.find(key.round);
    if (round == rounds_.end()) return nullptr;
    const auto answer = round->second.answers.find(key.index);
    return answer == round->second.answers.end() ? nullptr : &answer->second;
  }
  // Adds an answer, replacing an earlier one.
  void add(SharedValues answer) {
    Answers& round = rounds_[answer.round];
    if (const auto at = round.answers.find(answer.index); at != round.answers.end()) round.erase(at);
    round.bytes += answer.bytes();
    round.answers.emplace(answer.index, std::move(answer));
    while (round.bytes > kMaxRoundBytes) round.erase(round.answers.begin());  // one alone is never too much
    const auto later = rounds_.upper_bound(Round(0));
    if (static_cast<std::size_t>(std::distance(later, rounds_.end())) > kRounds) rounds_.erase(later);
  }
  std::vector<const SharedValues*> all() const {  // by key
    std::vector<const SharedValues*> all;
    for (const auto& [number, round] : rounds_) {
      for (const auto& [index, answer] : round.answers) all.push_back(&answer);
    }
    return all;
  }

 private:
  struct Answers {
    std::map<std::uint32_t, SharedValues> answers;
    std::size_t bytes = 0;

    void erase(std::map<std::uint32_t, SharedValues>::iterator at) {
      bytes -= at->second.bytes();
      answers.erase(at);
    }
  };
  JobId job_;
  std::map<Round, Answers> rounds_;
};

}  // namespace tributary

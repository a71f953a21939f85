// UnansweredFacts: a gate's facts that a job's lanes sent, until the coordinator's decision about that round or a later
// one comes. (A lane that reports a decision gets no other reply.) Pure. A part of ServerJob.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/wire/messages.h"

namespace tributary {

class UnansweredFacts {
 public:
  static constexpr std::uint64_t kRepeatMs = 500;  // facts that were not answered are sent again

  void sent(LaneIndex lane, RoundFacts facts, std::uint64_t now_ms) {
    facts_[lane] = std::move(facts);
    sent_ms_ = now_ms;
  }
  void decided(Round round) {
    std::erase_if(facts_, [&](const auto& entry) { return entry.second.round <= round; });
  }
  // Returns facts to send again now, and takes them for sent.
  std::vector<RoundFacts> due(std::uint64_t now_ms) {
    std::vector<RoundFacts> due;
    if (facts_.empty() || now_ms < sent_ms_ + kRepeatMs) return due;
    sent_ms_ = now_ms;
    for (const auto& [lane, facts] : facts_) due.push_back(facts);
    return due;
  }

 private:
  std::map<LaneIndex, RoundFacts> facts_;
  std::uint64_t sent_ms_ = 0;  // the last of them
};

}  // namespace tributary

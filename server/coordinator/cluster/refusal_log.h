// RefusalLog: the refusals that are in the log already. Peers retry, and each time get the refusal; the log has a
// refusal once in kForgetMs, and at most kMaxLines of them. Lives in the coordinator.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tributary {

class RefusalLog {
 public:
  static constexpr std::uint64_t kForgetMs = 600'000;
  static constexpr std::size_t kMaxLines = 64;

  // Returns whether to log the refusal. job: its name, if it is about one.
  bool is_news(PeerId to, ErrorCode code, const std::string& job) {
    return logged_.size() < kMaxLines && logged_.emplace(to, code, job).second;
  }
  void tick(std::uint64_t now_ms) {
    if (logged_.empty() || forget_ms_ == 0) forget_ms_ = now_ms + kForgetMs;
    if (now_ms >= forget_ms_) logged_.clear();
  }

 private:
  std::set<std::tuple<PeerId, ErrorCode, std::string>> logged_;
  std::uint64_t forget_ms_ = 0;  // counted from the tick before the first of them; 0: no tick yet
};

}  // namespace tributary

// WakingClock: the time in which an observer was running. The clock stands still while the observer's process is
// stopped, its machine paused or its thread held up. So a peer's silence includes only time in which the observer could
// have received messages. Used by one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tributary {

class WakingClock {
 public:
  // longest_step_ms: the most that counts between two looks; longer than the observer takes when nothing delays it.
  explicit WakingClock(std::uint64_t longest_step_ms) : longest_step_ms_(longest_step_ms) {}

  // now: of a clock that never stands still (common/base/clock.h). REQUIRES: it does not go back.
  std::uint64_t at(std::uint64_t now_ms) {
    if (looked_) {
      waking_ms_ += std::min(now_ms - last_ms_, longest_step_ms_);
    } else {
      waking_ms_ = now_ms;
    }
    looked_ = true;
    last_ms_ = now_ms;
    return waking_ms_;
  }

 private:
  std::uint64_t longest_step_ms_;
  bool looked_ = false;
  std::uint64_t last_ms_ = 0;
  std::uint64_t waking_ms_ = 0;
};

}  // namespace tributary

// Patience: a wait that is limited by progress. It is over when nothing has moved for its limit, however long the whole
// takes: a wait for ten gigabytes over a slow link may last as long as it makes progress. The caller supplies a number
// that changes with every step.
#pragma once

#include <cstdint>

namespace tributary {

class Patience {
 public:
  Patience(std::uint64_t limit_ms, std::uint64_t now_ms) : limit_ms_(limit_ms), since_ms_(now_ms) {}

  // progress: a number that changes with every step forward.
  bool over(std::uint64_t progress, std::uint64_t now_ms) {
    if (progress != progress_) {
      progress_ = progress;
      since_ms_ = now_ms;
    }
    return now_ms > since_ms_ + limit_ms_;
  }
  // Restarts the limit, for progress that the caller measures elsewhere.
  void renew(std::uint64_t now_ms) { since_ms_ = now_ms; }
  std::uint64_t limit_ms() const { return limit_ms_; }
  // The last step forward, or the beginning.
  std::uint64_t since_ms() const { return since_ms_; }

 private:
  std::uint64_t limit_ms_;
  std::uint64_t since_ms_;
  std::uint64_t progress_ = 0;
};

}  // namespace tributary

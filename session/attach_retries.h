// AttachRetries: whether a rank without a session attaches again, and after which pause. One rule for all programs: the
// built-in trainer, C (tributary_retry()), PyTorch, and the simulator's trainers. Pure. A part of RecoveryHandle, which
// outlives sessions.
//
// Thread rule: the rank's thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/config/config.h"

namespace tributary {

// Whether attaching again may help after an error of an attach or a session: a process is or was gone, and may be back.
inline bool may_come_back(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kTimeout || code == ErrorCode::kStaleView;
}
inline bool may_come_back(const Error& error) {
  return may_come_back(error.code);
}

class AttachRetries {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirstPause{25}, kLongestPause{5'000};
  // A rank gives up after so many tries, and so long, without a new round.
  static constexpr std::uint32_t kTries = 5;
  static constexpr std::chrono::seconds kPatience{60};

  // A session is over. began: its first round; nothing: it never started. cut: its view lost a member. (Called by
  // Session.)
  void ended(std::optional<Round> began, bool cut, const MembershipConfig& membership) {
    began_ = began.value_or(began_);
    cut_in_elastic_ = cut && membership.on_worker_loss == OnWorkerLoss::kContinue;
    rejoin_ = std::chrono::milliseconds(membership.rejoin_ms);
  }
  // Returns the pause before the next attach. complete: the rank's newest complete round. Nothing: the rank gives up.
  std::optional<std::chrono::milliseconds> next(Round complete, Clock::time_point now) {
    // A job that went back makes its way again: no reason to wait longer.
    idle_ = complete > began_ ? 1 : idle_ + 1;
    fruitless_ = fruitless_ == 0 || complete > best_ ? 1 : fruitless_ + 1;
    if (fruitless_ == 1) progress_ = now;
    best_ = std::max(best_, complete);
    if (fruitless_ > kTries && now > progress_ + kPatience) return std::nullopt;
    const std::chrono::milliseconds pause = std::min(kFirstPause * (1 << std::min(idle_ - 1, 10u)), longest_pause());
    began_ = complete;
    cut_in_elastic_ = false;
    return pause;
  }
  // The error when next() gives nothing. why: of the last session or attach.
  std::string gave_up(const std::string& why) const {
    return "gave up after attaching " + std::to_string(fruitless_ - 1) +
           " times again without completing a round; the last reason: " + why;
  }

 private:
  // The next view of an elastic job waits for its nodes for a while, and the pause is well within that. Otherwise nodes
  // would take turns: each would continue without those that pause, until these are back and end its view. A daemon
  // that cannot be reached may take its time.
  std::chrono::milliseconds longest_pause() const {
    return cut_in_elastic_ ? std::clamp(rejoin_ / 2, kFirstPause, kLongestPause) : kLongestPause;
  }

  Round began_, best_;
  std::uint32_t idle_ = 0, fruitless_ = 0;
  Clock::time_point progress_;
  bool cut_in_elastic_ = false;
  std::chrono::milliseconds rejoin_{0};
};

}  // namespace tributary

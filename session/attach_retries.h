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
  // A rank gives up after so many tries, and so long, without a round. (So many take longer than that.)
  static constexpr std::uint32_t kTries = 20;
  static constexpr std::chrono::seconds kPatience{60};

  // A session is over. cut: its view lost a member. (Called by Session.)
  void ended(bool cut, const MembershipConfig& membership) {
    cut_in_elastic_ = cut && membership.on_worker_loss == OnLoss::kContinue;
    rejoin_ = std::chrono::milliseconds(membership.rejoin_ms);
  }
  // Returns the pause before the next attach. round_done: since the last call. Nothing: the rank gives up.
  std::optional<std::chrono::milliseconds> next(bool round_done, Clock::time_point now) {
    tries_ = round_done ? 1 : tries_ + 1;
    if (tries_ == 1) progress_ = now;
    if (tries_ > kTries && now > progress_ + kPatience) return std::nullopt;
    const std::chrono::milliseconds pause = std::min(kFirstPause * (1 << std::min(tries_ - 1, 10u)), longest_pause());
    cut_in_elastic_ = false;
    return pause;
  }
  // The error when next() gives nothing. why: of the last session or attach.
  std::string gave_up(const std::string& why) const {
    return "gave up after attaching " + std::to_string(tries_ - 1) +
           " times without completing a round; the last reason: " + why;
  }

 private:
  // The next view of an elastic job waits for its nodes for a while, and the pause is well within that. Otherwise nodes
  // would take turns: each would continue without those that pause, until these are back and end its view. A daemon
  // that cannot be reached may take its time.
  std::chrono::milliseconds longest_pause() const {
    return cut_in_elastic_ ? std::clamp(rejoin_ / 2, kFirstPause, kLongestPause) : kLongestPause;
  }

  std::uint32_t tries_ = 0;  // in a row, since the last round
  Clock::time_point progress_;
  bool cut_in_elastic_ = false;
  std::chrono::milliseconds rejoin_{0};
};

}  // namespace tributary

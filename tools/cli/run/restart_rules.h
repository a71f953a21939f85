// RestartRules: decides whether a process that ended, and should not have, is started again. Pure.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/exit_codes.h"
#include "tools/cluster/process.h"

namespace tributary::cli {

class RestartRules {
 public:
  static constexpr std::uint64_t kRounds = 10;  // so many rounds later a restart is forgotten
  static constexpr std::uint32_t kErrors = 3;   // errors of a process without a round between them

  // most: restarts of one process within kRounds rounds.
  explicit RestartRules(std::uint32_t most) : most_(most) {}

  // Returns why `who` is not started again; nothing if it is. It ended with `status`, when the job had completed
  // `rounds` since the run began. A process killed from outside did nothing wrong; an error comes again, unless rounds
  // went by. Ranks that exchange among themselves fail when one of them is lost: an error of a process that ran when
  // another was lost is attributed to that loss, until a round is complete.
  std::optional<std::string> refusal(const std::string& who, const ExitStatus& status, std::uint64_t rounds) {
    const auto [at, first] = processes_.try_emplace(who);
    Past& past = at->second;
    if (first || rounds >= past.counted_from + kRounds)
      past = {.counted_from = rounds, .last = rounds, .losses = past.losses};
    if (rounds > past.last) past.errors = 0;
    past.last = rounds;
    if (says_usage(status)) return "status 2 says that it would fail again";
    if (!is_error(status) || (losses_ > past.losses && rounds == lost_at_)) {
      ++losses_;
      lost_at_ = rounds;
    } else {
      if (rounds == 0) return "no round was complete since this run began";
      if (++past.errors > kErrors)
        return "it failed as often as " + std::to_string(past.errors) + " times in one round";
    }
    past.losses = losses_;
    if (++past.restarts > most_) {
      return "it was started again " + std::to_string(most_) + " times within " + std::to_string(kRounds) +
             " rounds (--restarts)";
    }
    return {};
  }

  static bool says_usage(const ExitStatus& status) { return status.signal == 0 && status.code == kExitUsage; }

  // An exit status, or a signal that a process brings upon itself. A shell reports signal n as status 128 + n.
  static bool is_error(const ExitStatus& status) {
    constexpr int kOwn[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP};
    const int signal = status.signal == 0 ? std::max(status.code - kExitSignal, 0) : status.signal;
    return signal == 0 || std::ranges::find(kOwn, signal) != std::end(kOwn);
  }

 private:
  struct Past {
    std::uint64_t counted_from = 0, last = 0;
    std::uint32_t restarts = 0, errors = 0;
    std::uint64_t losses = 0;  // of losses_, when it was started
  };

  const std::uint32_t most_;
  // Number of processes that were lost without an error of their own, and the round of the last one.
  std::uint64_t losses_ = 0, lost_at_ = 0;
  std::map<std::string, Past> processes_;
};

}  // namespace tributary::cli

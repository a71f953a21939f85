// StrikeWatch: decides from the ranks' reports whether a job is back after a strike of `tributary chaos`. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tools/cluster/progress_socket.h"

namespace tributary::cli {

// A rank reports a round when it has given its gradient away, maybe before it has noticed a loss. So a report counts
// for the time after a strike only if the rank has attached again since, and as a recovery only if its view has
// completed a round. REQUIRES: before strike(), all_back() or no strike before (else a late report from the view before
// may be taken for a new one).
class StrikeWatch {
 public:
  explicit StrikeWatch(std::uint32_t ranks) : ranks_(ranks) {}

  void take(const ProgressReport& report) {
    if (report.rank >= ranks_.size()) return;
    Rank& rank = ranks_[report.rank];
    rank.restarts = std::max(rank.restarts, report.restarts);
    if (!struck_ || report.restarts <= rank.restarts_before) {
      std::uint64_t& complete = struck_ ? complete_before_ : complete_;
      complete = std::max(complete, report.complete);
      return;
    }
    complete_ = std::max(complete_, report.complete);
    resumed_ = std::min(resumed_.value_or(report.resumed), report.resumed);
    if (report.complete > report.resumed) rank.back = true;
  }

  // Begins a strike: from now on reports of attaches that are known already are old.
  void strike() {
    struck_ = true;
    complete_before_ = complete_;
    complete_ = 0;
    resumed_.reset();
    for (Rank& rank : ranks_) {
      rank.restarts_before = rank.restarts;
      rank.back = false;
    }
  }

  // The newest round that a rank had all answers of, since the last strike's new view began.
  std::uint64_t complete() const { return complete_; }
  // The same of the view before it, including later reports of it.
  std::uint64_t complete_before() const { return complete_before_; }
  // Some rank, or every rank, has seen its view complete a round after the strike.
  bool back() const {
    return std::ranges::any_of(ranks_, [](const Rank& rank) { return rank.back; });
  }
  bool all_back() const {
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.back; });
  }
  // Rounds that were reported complete before, and were computed again.
  std::uint64_t recomputed() const {
    const std::uint64_t from = resumed_.value_or(complete_before_);
    return complete_before_ - std::min(from, complete_before_);
  }

 private:
  struct Rank {
    std::uint32_t restarts = 0, restarts_before = 0;
    bool back = false;
  };
  std::vector<Rank> ranks_;
  bool struck_ = false;
  std::uint64_t complete_ = 0, complete_before_ = 0;
  std::optional<std::uint64_t> resumed_;  // the earliest round after which a view since the strike began
};

}  // namespace tributary::cli

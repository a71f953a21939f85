// KeepAlive: starts daemons and trainers of a cluster again that ended and should not have, so that its job continues.
// Owner: `tributary run`; one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "tools/cli/run/restart_rules.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::cli {

class KeepAlive {
 public:
  // rounds: completed since the run began; called when a process has ended. waits: whether a trainer waits for others.
  // tell: prints a line.
  KeepAlive(LocalCluster& cluster, std::uint32_t most, std::function<std::uint64_t()> rounds,
            std::function<bool()> waits, std::function<void(std::string_view)> tell)
      : cluster_(cluster), rules_(most), rounds_(std::move(rounds)), waits_(std::move(waits)), tell_(std::move(tell)) {}

  // Starts lost processes again. kInvalidArgument: a trainer exits with wrong usage. kUnavailable: a process is not
  // started again. Both name how it ended, and why.
  Status look();
  std::uint32_t restarts() const { return restarts_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Lost {
    std::vector<std::uint32_t> trainers;
    std::vector<Daemon*> daemons;
    bool nobody() const { return trainers.empty() && daemons.empty(); }
  };
  Lost lost();
  // Starts trainers again that ended well, if a restarted one waits for them: it was lost as the job came to its end.
  Status bring_back();
  template <class One>
  Status may_start(One& one, std::uint64_t rounds);
  Status start_again(std::vector<Daemon*> daemons);
  Status start_again(const std::vector<std::uint32_t>& trainers);

  LocalCluster& cluster_;
  RestartRules rules_;
  std::function<std::uint64_t()> rounds_;
  std::function<bool()> waits_;
  std::function<void(std::string_view)> tell_;
  std::optional<Clock::time_point> waits_since_;
  Clock::time_point asked_{};
  std::uint32_t brought_back_ = 0;
  std::uint32_t restarts_ = 0;
};

}  // namespace tributary::cli

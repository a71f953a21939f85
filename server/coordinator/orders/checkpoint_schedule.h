// CheckpointSchedule: orders the checkpoints that a job's [checkpoint] asks for. A checkpoint is made of the newest
// committed snapshot, so that training has no part in it: every `every_s` while the job trains, and when it stops. Where
// a store is broken it is made of what servers have in memory. Pure.
// Lives in the coordinator with its job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/ids.h"
#include "common/config/config.h"
#include "server/coordinator/orders/checkpoint_orders.h"

namespace tributary {

class CheckpointSchedule {
 public:
  // A round that failed is tried again after the first, then after twice as long, and so on.
  static constexpr std::uint64_t kFirstRetryMs = 60'000, kLastRetryMs = 3'600'000;

  static constexpr Round kToCome{~0ull};  // of a round that has yet to be named

  // Training begins, the first time or again.
  void runs(const CheckpointConfig& config, std::uint64_t now_ms);
  // Is the newest state to become a checkpoint now? newest: kToCome where a store is broken, so that no newer state is
  // there until one is asked for. stopped: nobody trains any more.
  bool due(const CheckpointConfig& config, Round newest, bool stopped, std::uint64_t now_ms) const;
  // Does a job that has stopped lack one of its newest state, which was not tried in vain?
  bool owed(const CheckpointConfig& config, Round newest) const { return lacks(config, newest) && newest != failed_; }
  // The order was taken; and its status, now and then. None: nobody knows of it any more.
  void ordered(const CheckpointConfig& config, std::uint64_t order, Round newest, std::uint64_t now_ms);
  void look(const std::optional<CheckpointStatus>& status, std::uint64_t now_ms);

  std::optional<std::uint64_t> under_way() const;          // the order
  const std::string& newest() const { return newest_; }    // its path; empty: none since the coordinator started
  const std::string& failure() const { return failure_; }  // why the last one failed; empty: it did not

 private:
  bool lacks(const CheckpointConfig& config, Round newest) const {
    return !config.dir.empty() && trained_ && newest != saved_;
  }

  struct Order {
    std::uint64_t id = 0;
    Round round;
  };
  bool trained_ = false;  // since the coordinator started
  Round saved_, failed_;  // last
  std::optional<Order> order_;
  std::uint64_t next_ms_ = 0;                  // by every_s
  std::uint64_t retry_ms_ = 0, pause_ms_ = 0;  // of failed_
  std::string newest_, failure_;
};

}  // namespace tributary

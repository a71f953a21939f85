// CheckpointSchedule: orders the checkpoints that a job's [checkpoint] asks for. A checkpoint is made of the newest
// committed snapshot, so that training has no part in it: every `every_s` while the job trains, and when it stops. Pure.
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

  // Training begins, the first time or again.
  void runs(const CheckpointConfig& config, std::uint64_t now_ms);
  // Is the committed snapshot to become a checkpoint now? stopped: nobody trains any more.
  bool due(const CheckpointConfig& config, Round committed, bool stopped, std::uint64_t now_ms) const;
  // Does a job that has stopped lack one of its committed snapshot, which was not tried in vain?
  bool owed(const CheckpointConfig& config, Round committed) const {
    return lacks(config, committed) && committed != failed_;
  }
  // The order was taken; and its status, now and then. None: nobody knows of it any more.
  void ordered(const CheckpointConfig& config, std::uint64_t order, Round committed, std::uint64_t now_ms);
  void look(const std::optional<CheckpointStatus>& status, std::uint64_t now_ms);

  std::optional<std::uint64_t> under_way() const;          // the order
  const std::string& newest() const { return newest_; }    // its path; empty: none since the coordinator started
  const std::string& failure() const { return failure_; }  // why the last one failed; empty: it did not

 private:
  bool lacks(const CheckpointConfig& config, Round committed) const {
    return !config.dir.empty() && trained_ && committed != saved_;
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

// The operator of a simulated cluster: orders checkpoints and restores one, asks for the status of each order, and
// repeats an order if its coordinator is gone. An order that chunks go to other servers is lost with its coordinator.
//
// A restore: there must be a checkpoint; the trainers are stopped; where the number of servers changes, a cluster with
// empty stores takes the place of the one that was; the order is given until it is carried out; the trainers are
// started again.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/coordinator/orders/checkpoint_orders.h"

namespace tributary {
class CoordinatorCore;
}

namespace tributary::sim {

class JobWorld;

class OperatorSim {
 public:
  explicit OperatorSim(JobWorld& world) : world_(world) {}
  void save(bool committed);
  void restore();
  void deal(std::set<std::uint16_t> without);

  bool idle() const { return saves_.empty() && deals_.empty() && !restoring_; }
  bool keeps_trainers() const { return restoring_ && *restoring_ != Restoring::kNoCheckpoint; }
  std::uint64_t saved() const { return saved_; }
  std::uint64_t saved_parts() const { return saved_parts_; }  // large parts of ranks' states
  std::uint64_t failed() const { return failed_; }
  std::uint64_t restored() const { return restored_; }

 private:
  struct Order {
    std::uint64_t coordinator = 0;  // that has it; 0: none yet
    std::uint64_t id = 0;
    bool committed = false;
    std::uint64_t begun_ns = 0;
  };
  struct Deal {
    std::set<std::uint16_t> without;
    std::uint64_t begun_ns = 0;
    std::uint64_t coordinator = 0;      // that has it; 0: none yet
    std::uint64_t servers_started = 0;  // then: one that comes anew may get chunks again
  };
  enum class Restoring { kNoCheckpoint, kStopping, kRestoring };
  void look_soon();
  void look();
  bool look_at(Order& save);  // false: it is over
  bool look_at(Deal& deal);
  void go_on();
  void give_restore(CoordinatorCore& coordinator);
  void begin_anew();
  CoordinatorCore* coordinator() const;  // null: it is not there
  std::uint64_t coordinator_id() const;
  // An order that takes longer than that, without faults, hangs.
  void check_patience(std::uint64_t begun_ns, const std::string& what) const;

  JobWorld& world_;
  bool looks_ = false;
  std::vector<Order> saves_;
  std::vector<Deal> deals_;
  std::optional<Restoring> restoring_;
  Order restore_;
  std::string newest_;  // checkpoint
  std::string refused_;
  std::uint64_t saved_ = 0, saved_parts_ = 0, failed_ = 0, restored_ = 0;
};

}  // namespace tributary::sim

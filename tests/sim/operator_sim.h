// The operator of a simulated cluster: orders checkpoints and restores one, asks for the status of each order, and
// repeats an order if its coordinator is gone.
//
// A restore: there must be a checkpoint; the trainers are stopped; where the number of servers changes, a cluster with
// empty stores takes the place of the one that was; the order is given until it is carried out; the trainers are
// started again.
#pragma once

#include <cstdint>
#include <optional>
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

  bool idle() const { return saves_.empty() && !restoring_; }
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
  enum class Restoring { kNoCheckpoint, kStopping, kRestoring };
  void look_soon();
  void look();
  bool look_at(Order& save);  // false: it is over
  void go_on();
  void give_restore(CoordinatorCore& coordinator);
  void begin_anew();
  CoordinatorCore* coordinator() const;  // null: it is not there
  std::uint64_t coordinator_id() const;
  // An order that takes longer than that, without faults, hangs.
  void check_patience(const Order& order, const std::string& what) const;

  JobWorld& world_;
  bool looks_ = false;
  std::vector<Order> saves_;
  std::optional<Restoring> restoring_;
  Order restore_;
  std::string newest_;  // checkpoint
  std::string refused_;
  std::uint64_t saved_ = 0, saved_parts_ = 0, failed_ = 0, restored_ = 0;
};

}  // namespace tributary::sim

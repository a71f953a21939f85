// LocalTrainers: the trainers of a job on this node, by local rank. AttachedJob owns it. All have the same node and
// world sizes. A trainer whose connection has closed stays, and its local rank is taken, until it is erased. Thread
// rule: the attach thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/wire/messages.h"
#include "worker/node/job.h"
#include "worker/node_jobs_context.h"

namespace tributary {

struct LocalTrainer {
  TrainerId id;
  std::uint32_t rank = 0;
  std::int32_t pid = 0;
  std::string device;           // of its gradients; empty: host memory
  bool gradients_move = false;  // AttachRequest::gradients_move
  std::string computes_with;
  std::uint32_t model_rank = 0;
  bool hears_waits = false;  // AttachRequest::hears_waits
  JobId lived_in{};          // AttachRequest::lived_in
  bool connected = true;
  std::optional<LeaveKind> left{};
  Figures figures{};  // that it said last

  bool stays() const { return !left; }
  bool has_left() const { return left.has_value(); }
  bool stopped() const { return left == LeaveKind::kStopped; }
  bool ended() const { return left == LeaveKind::kFinishesAll; }
  bool takes_part() const { return connected && !left; }
  bool waits() const { return connected && left; }  // for the outcome
  bool on_device() const { return !device.empty(); }
};

class LocalTrainers : private std::map<std::uint32_t, LocalTrainer> {
 public:
  using map::at, map::begin, map::end, map::erase, map::size;

  explicit LocalTrainers(const AttachRequest& first)
      : node_(first.node_rank), world_size_(first.world_size), local_world_size_(first.local_world_size) {}

  NodeRank node() const { return node_; }
  std::uint32_t world_size() const { return world_size_; }
  std::uint32_t local_world_size() const { return local_world_size_; }
  bool complete() const { return size() == local_world_size_; }
  bool any(auto LocalTrainer::*is) const {
    return std::ranges::any_of(*this, [&](const auto& one) { return std::invoke(is, one.second); });
  }
  std::optional<std::uint32_t> local_rank_of(TrainerId id) const;
  std::string who(std::uint32_t local_rank) const;
  // Returns a trainer that has left cleanly, and how: "trainer rank 0 (pid 12) on node 0 finished". REQUIRES: one has.
  std::string who_left() const;
  // "local rank 1, 3 of node 0": those that have not attached. Empty: none.
  std::string missing() const;
  void tell(const AttachWaits& waits, TrainerPort& port) const;
  std::vector<std::string> devices() const;
  std::vector<std::uint32_t> model_ranks() const;  // by local rank
  // Fills in the ranks that have lived through a view of join.held_job, or of the job that they name.
  void describe_living(JoinJob& join) const;

  // Checks that a trainer has the same node and world sizes, and a free local rank. job: in words.
  Status admit(const AttachRequest& request, const std::string& job) const;
  void add(TrainerId id, const AttachRequest& request, int peer_pid);
  // The view begins: sends each trainer its rank, the memory that it shares with the worker, and its kept state.
  void welcome(const JobWelcome& m, const NodeJob& job, std::span<const int> doorbells, const HeldStates& held,
               TrainerPort& port);
  void send(const AttachMessage& message, TrainerPort& port) const;  // to those that take part

 private:
  const NodeRank node_;
  const std::uint32_t world_size_, local_world_size_;
};

}  // namespace tributary

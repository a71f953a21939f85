// AllreduceJob: one view of an all-reduce job on one node. Its buckets are the layout's chunks. AllreduceLane owns it.
//
//   trainers ──ready──► NodeBuckets ──complete──► BucketExchange ──sum, step──► node region ──version──► trainers
//
// A thread of its own, the conductor, begins and ends the view. It publishes addresses, passes the parameters along the
// control ring from the node that has them (NodeJobSpec::values_from), then watches that ring (a neighbour whose
// connection breaks is lost). At the end it stops the exchange, writes the last checkpoint and sends the goodbyes.
//
// The parts: ViewProgress has the phase and the one lock, NodeBuckets the trainers' side. The exchange sums and steps
// on the host (HostExchange), or on the GPUs with the gradients (spec.allreduce_devices; DeviceExchange). The control
// ring is the same for both.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "worker/allreduce/allreduce_means.h"
#include "worker/allreduce/checkpointer.h"
#include "worker/allreduce/host_exchange.h"
#include "worker/allreduce/node_buckets.h"
#include "worker/allreduce/view_progress.h"

namespace tributary {

class AllreduceJob {
 public:
  static constexpr std::size_t kMaxMembers = kMaxTailMembers;  // of a ring

  AllreduceJob(std::shared_ptr<NodeJob> job, const AllreduceMeans& means);  // means outlive this
  ~AllreduceJob();                                                          // aborts work that is still under way
  AllreduceJob(const AllreduceJob&) = delete;
  AllreduceJob& operator=(const AllreduceJob&) = delete;

  const std::shared_ptr<NodeJob>& job() const { return job_; }

  // The lane's thread.
  void initial_values();
  void peer_address(const PeerAddress& address);
  void scan() { buckets_.scan(); }
  void tick(std::uint64_t now_ms);
  void close(bool clean);
  // After close(): nothing more will be written.
  bool has_outcome() const { return has_outcome_.load(std::memory_order_acquire); }
  // The checkpoint on this node's disk after a clean close(). REQUIRES: has_outcome().
  const SnapshotDone& outcome() const { return outcome_; }
  bool ended() const { return ended_.load(std::memory_order_acquire); }  // its threads are done

 private:
  // The conductor's.
  void conduct();
  Status begin();
  Status open_rings();
  std::unique_ptr<BucketExchange> make_exchange();
  Status connect();
  Status first_values();
  Status pass_values_on();
  void end();
  Status last_checkpoint();
  SnapshotDone outcome_of(const Status& saved, Round newest) const;

  void cut();

  const std::shared_ptr<NodeJob> job_;
  const ViewPlan& view_;  // of job_
  const AllreduceMeans& means_;
  const std::chrono::milliseconds timeout_;
  const char* const address_key_;  // of this node's kind of exchange
  ViewProgress progress_;
  NodeBuckets buckets_;
  std::unique_ptr<ReplicaState> state_;         // from begin() on
  std::unique_ptr<Checkpointer> checkpointer_;  // nodes that keep checkpoints, with a store

  // Written under the lock.
  std::unique_ptr<GlooRing> control_;  // from open_rings() on
  std::unique_ptr<BucketExchange> exchange_;
  bool has_initial_ = false;  // the first parameters are in the node region

  SnapshotDone outcome_;  // written before has_outcome_
  std::atomic<bool> has_outcome_{false}, ended_{false};
  std::thread conductor_;
};

}  // namespace tributary

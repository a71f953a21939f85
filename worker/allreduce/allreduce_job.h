// AllreduceJob: one view of an all-reduce job on one node. Its buckets are the layout's chunks.
//
//   trainers ──ready──► NodeGather ──complete──► stream i mod k ──sum, ring, step──► node region ──version──► trainers
//
// Order. All nodes must call a ring's collectives in the same order, so the order is fixed: the last bucket first,
// because a backward pass finishes the last layers first; the i-th of them on stream i mod k. A stream has its own ring
// (connections) and its own threads, and does everything for its bucket: the sum of the local ranks, the collective,
// the step. While one stream adds or steps, the others keep the wire busy.
//
// Members. A ring's members are the nodes (algorithm "hierarchical") or all ranks ("flat"). A stream has a thread for
// each member that this node has: one, which first sums the local ranks in tree order; or one for each local rank, the
// first of which also steps. "Flat" so sends between ranks of a node what a ring over ranks does.
//
// A bucket is summed in a staging buffer of the stream. The ranks' gradients are read once, segment by segment, when
// the ring sends the segment or adds to it (RingSource). Behind it travels its tail (worker/device/bucket_tail.h): the
// weight, and what proves that the nodes' replicas are the same (worker/allreduce/replica_digests.h).
//
// Over GPUs (spec.allreduce_devices) a DeviceExchange takes the place of the streams: the same buckets in the same
// order, summed by NCCL and stepped where they lie. The control ring is there all the same.
//
// A thread of the job's own, the conductor, begins and ends the view: publishes addresses, passes the parameters from
// node 0 along the control ring, then watches that ring (a neighbour whose connection breaks is lost), and at the end
// stops the streams, keeps what is to be kept and says goodbye.
//
// Locks: one mutex, taken once per bucket and stream, and by the lane when trainers ring.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "worker/allreduce/allreduce_lane.h"
#include "worker/allreduce/checkpointer.h"
#include "worker/allreduce/device_exchange.h"
#include "worker/allreduce/gloo_ring.h"
#include "worker/allreduce/replica_digests.h"
#include "worker/allreduce/replica_state.h"
#include "worker/device/bucket_tail.h"
#include "worker/reduce/node_gather.h"

namespace tributary {

class AllreduceJob final : private AllreduceEngineOutput {
 public:
  static constexpr std::uint16_t kDefaultStreams = 3;
  static constexpr std::uint16_t kMaxStreams = 16;
  static constexpr std::size_t kMaxMembers = kMaxTailMembers;  // of a ring
  static constexpr std::uint64_t kNoticeMs = 30'000;           // of waiting for other nodes, until it is logged

  AllreduceJob(std::shared_ptr<NodeJob> job, AllreduceLane& lane);
  ~AllreduceJob() override;  // cuts what is still under way
  AllreduceJob(const AllreduceJob&) = delete;
  AllreduceJob& operator=(const AllreduceJob&) = delete;

  const std::shared_ptr<NodeJob>& job() const { return job_; }

  // The lane's thread.
  void initial_values();
  void peer_address(const PeerAddress& address);
  void scan();
  void tick(std::uint64_t now_ms);
  void close(bool keep);
  bool kept() const { return kept_.load(std::memory_order_acquire); }  // nothing is kept (any more)
  // REQUIRES: kept(). On this node's disk, after close(keep = true).
  SnapshotDone left() const;
  bool ended() const { return ended_.load(std::memory_order_acquire); }  // its threads are done

  static std::uint16_t streams_of(const AllreduceOptions& options, std::size_t chunks);
  static bool is_flat(const JobPlan& plan) { return plan.config.allreduce.algorithm == AllreduceAlgorithm::kFlat; }
  static std::uint64_t staging_bytes(const Layout& layout, std::size_t members, std::uint16_t streams);

 private:
  // One member of one stream's ring, and its thread.
  struct Member {
    std::uint16_t stream = 0;
    std::uint32_t index = 0;  // among this node's members
    std::unique_ptr<GlooRing> ring;
    FloatArray staging;
    std::thread thread;
    // For the notice in the log: in a collective since then (0: not), and which.
    std::atomic<std::uint64_t> since_ms{0}, noticed_ms{0};
    std::atomic<std::uint32_t> chunk{0};
    std::atomic<std::uint64_t> round{0};
  };
  struct Complete {
    Round round;
    BucketTail tail;
  };
  using Addresses = std::vector<std::vector<std::byte>>;

  // The conductor's.
  void conduct();
  Status begin();
  Status open_rings();
  Status open_devices(PeerAddress& mine);
  Status connect_devices();
  Result<Addresses> addresses_of(std::uint32_t node);
  Status wait_for_members();
  Status first_values();
  Status pass_values_on();
  void publish_start();
  void end(bool began);
  Status last_checkpoint();
  SnapshotDone what_is_left(const Status& saved, Round newest) const;

  // Members'.
  class Bucket;  // what a member adds to one, as RingSource
  void run_member(Member& member);
  Status connect_member(Member& member);
  Status exchange(Member& member, ChunkIndex chunk, Round round, const BucketTail& tail);
  Status finish_bucket(Member& member, ChunkIndex chunk, Round round, std::uint64_t digest);
  void publish_bucket(ChunkIndex chunk, Round round);

  // The device exchange's thread.
  bool wants(ChunkIndex chunk, Round round) override;
  void keep(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
            std::uint64_t step) override;
  Error replicas_differ(Round round) override { return digests_.difference(round); }
  void stepped(ChunkIndex chunk, Round round) override;
  void engine_failed(const Error& error) override;

  // Reports it, unless the view is ending.
  void fail_job(LaneFailure::Kind kind, Error error);
  void fail_call(const std::string& what, const Error& error);
  void cut();
  std::string place() const;
  bool on_devices() const { return job_->spec().allreduce_devices != nullptr; }
  std::uint32_t members_here() const { return flat_ ? job_->spec().ranks : 1; }
  std::uint32_t ring_size() const { return view_.nodes * members_here(); }

  const std::shared_ptr<NodeJob> job_;
  const ViewPlan& view_;  // of job_
  AllreduceLane& lane_;
  const bool flat_;
  const std::uint16_t streams_;
  std::vector<std::uint64_t> seen_;               // [rank * tensors + t]: round last seen; the lane's
  std::vector<NodeGather::Complete> newly_;       // scratch; the lane's
  std::unique_ptr<ReplicaState> state_;           // from begin() on
  ReplicaDigests digests_;                        // taken by who steps, brought by the lane
  std::unique_ptr<Checkpointer> checkpointer_;    // node 0 with a store
  std::unique_ptr<GlooRing> control_;             // from open_rings() on
  std::vector<std::unique_ptr<Member>> members_;  // [stream * members_here() + index], likewise; none on devices
  std::unique_ptr<DeviceExchange> exchange_;      // likewise; null on the host

  std::mutex mutex_;  // guards what follows, and the creation of the rings
  std::condition_variable changed_;
  NodeGather gather_;
  std::vector<Complete> complete_;  // by chunk: newest round that all local ranks are ready with
  std::map<std::uint32_t, std::vector<std::byte>> published_;  // by node
  std::uint32_t connected_ = 0;                                // members
  bool initial_ = false;                                       // the first parameters are in the node region
  bool begun_ = false;                                         // training
  bool closing_ = false, keep_ = false, failed_ = false, cut_ = false;

  std::optional<SnapshotDone> left_;  // written before kept_; nothing: the view failed
  std::atomic<bool> kept_{false}, ended_{false};
  std::thread conductor_;
};

}  // namespace tributary

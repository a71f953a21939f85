// HostExchange: sums a view's buckets in host memory, over Gloo rings.
//
// Order. All nodes must call a ring's collectives in the same order, so the order is fixed: the last bucket first,
// because a backward pass finishes the last layers first; the i-th of them on stream i mod k. A stream has its own ring
// (connections) and its own threads, and does everything for its bucket: the sum of the local ranks, the collective,
// the step. While one stream adds or steps, the others keep the wire busy.
//
// Members. A ring's members are the nodes (algorithm "hierarchical") or all ranks ("flat"). A stream has a thread for
// each of this node's members: one, which first sums the local ranks in tree order; or one for each local rank, the
// first of which also steps. So "flat" also sends between the ranks of a node, as any ring over ranks does.
//
// A bucket is summed in a staging buffer of the member. The ranks' gradients are read once, segment by segment, when
// the ring sends the segment or adds to it (RingSource). The bucket's tail travels behind it
// (worker/device/bucket_tail.h): the weight, and a digest to compare the nodes' replicas by
// (worker/allreduce/replica_digests.h).
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "worker/allreduce/allreduce_means.h"
#include "worker/allreduce/bucket_exchange.h"
#include "worker/allreduce/gloo_ring.h"
#include "worker/allreduce/view_progress.h"

namespace tributary {

// How many members a view's rings have.
struct RingShape {
  std::uint32_t here = 1;  // on each node
  std::uint32_t size = 1;

  static RingShape of(const NodeJobSpec& spec);
};

class HostExchange final : public BucketExchange {
 public:
  static constexpr std::uint16_t kDefaultStreams = 3;
  static constexpr std::uint16_t kMaxStreams = 16;

  // All outlive this.
  HostExchange(const NodeJob& job, const AllreduceMeans& means, ViewProgress& progress, ReplicaState& state,
               BucketOutput& output);

  static std::uint16_t streams_of(std::uint16_t wanted, std::size_t chunks);
  static std::uint64_t staging_bytes(const Layout& layout, std::size_t members, std::uint16_t streams);

  Status open(std::shared_ptr<GlooDevice> device, Addresses& mine) override;
  std::size_t address_count(std::uint32_t /*node*/) const override { return 2 * members_.size(); }
  void begin_connecting() override;
  Status connect(ViewProgress& view) override;
  void stop(const std::function<void()>& meet) override;
  void ready(ChunkIndex chunk, Round round, const BucketTail& tail) override { ready_[chunk.value] = {round, tail}; }
  void notice(std::uint64_t now_ms) override;
  void close(bool clean) override;

 private:
  // One member of one stream's ring, and its thread.
  struct Member {
    Member(std::uint16_t of, std::uint32_t at, std::unique_ptr<GlooRing> opened, std::uint64_t elements)
        : stream(of), index(at), ring(std::move(opened)), staging(elements, kernels::kMaxSlots + 1) {}
    const std::uint16_t stream;
    const std::uint32_t index;  // among this node's members
    const std::unique_ptr<GlooRing> ring;
    const FloatArray staging;
    // For the notice in the log: in a collective since then (0: not), and which.
    std::atomic<std::uint64_t> since_ms{0}, noticed_ms{0};
    std::atomic<std::uint32_t> chunk{0};
    std::atomic<std::uint64_t> round{0};
    std::thread thread;  // from begin_connecting() to stop()
  };
  struct Ready {
    Round round;
    BucketTail tail;
  };
  class Bucket;  // a member's contribution to one, as RingSource

  // A member's thread.
  void run_member(Member& member);
  Status connect_member(Member& member);
  Status exchange(Member& member, ChunkIndex chunk, Round round, const BucketTail& tail);
  Status finish_bucket(Member& member, ChunkIndex chunk, Round round, std::uint64_t digest);

  const NodeJob& job_;
  const AllreduceMeans& means_;
  const RingShape shape_;
  const std::uint16_t streams_;
  ViewProgress& progress_;
  ReplicaState& state_;
  BucketOutput& output_;
  std::vector<Ready> ready_;     // by chunk: the newest round that all local ranks are ready with; under the lock
  std::uint32_t connected_ = 0;  // members; under the lock
  std::vector<std::unique_ptr<Member>> members_;  // [stream * shape_.here + index]
};

}  // namespace tributary

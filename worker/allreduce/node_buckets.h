// NodeBuckets: the buckets of one view between this node's trainers and the exchange. Finds those that all local ranks
// are ready with, publishes those that are stepped, and reads the replica for checkpoints and digests that are due.
// Owned by AllreduceJob.
//
// Thread rule: scan() on the lane's thread, start() on the conductor's, the rest on the exchange's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/allreduce/bucket_exchange.h"
#include "worker/allreduce/checkpointer.h"
#include "worker/allreduce/replica_digests.h"
#include "worker/allreduce/view_progress.h"
#include "worker/reduce/node_gather.h"

namespace tributary {

class NodeBuckets final : public BucketOutput {
 public:
  // ring_size: members of a ring. All outlive this.
  NodeBuckets(NodeJob& job, std::uint32_t ring_size, ViewProgress& progress);

  // Publishes the view's first values, which are in the node region, to the trainers; passes later ready buckets to
  // `exchange`. checkpointer: null if this node writes none.
  void start(BucketExchange& exchange, Checkpointer* checkpointer);
  // Called after a trainer's doorbell: passes buckets that have become ready to the exchange.
  void scan();

  // The settings do not change between ready() and stepped().
  SaidSettings settings(ChunkIndex chunk) const override { return buckets_.at(chunk).gradient.settings; }
  bool wants(ChunkIndex chunk, Round round) override;
  void capture(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
               std::uint64_t step) override;
  Error replicas_differ(Round round) override { return digests_.difference(round); }
  void stepped(ChunkIndex chunk, Round round) override;
  void exchange_failed(const std::string& doing, const Error& error) override { progress_.failed(doing, error); }

 private:
  void publish(ChunkIndex chunk, Round round);

  NodeJob& job_;
  const std::uint32_t ring_size_;
  ViewProgress& progress_;
  std::vector<LaneChunk*> complete_;  // found by this scan; the lane's
  ReplicaDigests digests_;            // taken by the exchange's threads, brought by the lane
  // From start() on.
  BucketExchange* exchange_ = nullptr;
  Checkpointer* checkpointer_ = nullptr;
  // ViewProgress's lock guards both. But between ready() and stepped() the exchange's threads read a bucket's settings
  // without the lock, and its numbers and range never change.
  LaneChunks buckets_;
  NodeGather gather_;
};

}  // namespace tributary

#include "worker/allreduce/node_buckets.h"

namespace tributary {

NodeBuckets::NodeBuckets(NodeJob& job, std::uint32_t ring_size, ViewProgress& progress)
    : job_(job),
      ring_size_(ring_size),
      progress_(progress),
      digests_(job.layout().chunks(), job.view().nodes),
      buckets_(job.view().layout, job.view().start),
      gather_(buckets_, job.spec().ranks) {
  complete_.reserve(job.layout().chunks());
}

void NodeBuckets::start(BucketExchange& exchange, Checkpointer* checkpointer) {
  {
    const auto lock = progress_.lock();
    exchange_ = &exchange;
    checkpointer_ = checkpointer;
    for (LaneChunk& bucket : buckets_) NodeGather::answered(bucket);
    if (progress_.phase() == ViewProgress::Phase::kBeginning) progress_.enter(ViewProgress::Phase::kTraining);
  }
  progress_.notify();
  for (const LaneChunk& bucket : buckets_) publish(bucket.index, job_.view().start);
  job_.header().announce();
}

void NodeBuckets::publish(ChunkIndex chunk, Round round) {
  job_.publish(chunk, Version(round.value));
}

// ---- The lane's thread ----

// The lock is held while the trainers' words are read. An exchange takes it before it publishes a version, so that a
// rank that is ready for the next round finds its chunks open.
void NodeBuckets::scan() {
  Status status;
  std::uint32_t culprit = 0;
  complete_.clear();
  {
    const auto lock = progress_.lock();
    if (progress_.phase() != ViewProgress::Phase::kTraining) return;
    for (std::uint32_t rank = 0; rank < job_.spec().ranks && status; ++rank) {
      status = gather_.look(rank, job_.rank_words(rank), complete_);
      culprit = rank;
    }
    for (const LaneChunk* bucket : complete_) {
      const LaneChunk::Gradient& gradient = bucket->gradient;
      exchange_->ready(bucket->index, gradient.round, {gradient.weight, digests_.bring(bucket->index)});
    }
    if (!status) progress_.enter(ViewProgress::Phase::kFailed);
  }
  if (!complete_.empty() || !status) progress_.notify();
  if (!status) progress_.tell({LaneFailure::Kind::kTrainer, culprit, status.error()});
}

// ---- The exchange's threads ----

bool NodeBuckets::wants(ChunkIndex chunk, Round round) {
  const bool saved = checkpointer_ && checkpointer_->reaches(round);
  return saved || digests_.due(chunk, round);
}

void NodeBuckets::capture(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
                          std::uint64_t step) {
  if (checkpointer_ && checkpointer_->reaches(round)) checkpointer_->capture(chunk, parameters, state, step);
  if (digests_.due(chunk, round)) {
    digests_.take(chunk, {parameters, job_.layout().chunk(chunk).elements}, state, step);
  }
}

void NodeBuckets::stepped(ChunkIndex chunk, Round round) {
  // Bytes over this node's link, each way: a ring over ranks has one member here whose neighbour is elsewhere.
  const std::uint64_t bytes = (job_.layout().chunk(chunk).elements + kTailParts) * sizeof(float);
  const std::uint64_t wire = job_.view().nodes == 1 ? 0 : 2 * bytes * (ring_size_ - 1) / ring_size_;
  NodeHeader& header = job_.header();
  header.bytes_pushed.fetch_add(wire, std::memory_order_relaxed);
  header.bytes_pulled.fetch_add(wire, std::memory_order_relaxed);
  {
    const auto lock = progress_.lock();
    NodeGather::answered(buckets_.at(chunk));
    LaneJobStats& counts = job_.lane_stats(0);
    counts.pushes.add();
    counts.answers.add();
    counts.bytes_pushed.add(wire);
    counts.bytes_pulled.add(wire);
    counts.reduce_ns.set(job_.reduce_ns());
  }
  publish(chunk, round);
  job_.header().announce();
}

}  // namespace tributary

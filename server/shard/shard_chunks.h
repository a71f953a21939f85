// ShardChunks: the chunks of one job on one lane: where each is, its buffers, and the optimizer's step. Owned by
// ShardCore; the round rules (server/shard/round_rule.h) and their parts work on it. Thread rule: the lane's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/step_runs.h"
#include "common/math/encoding.h"
#include "common/math/fused_step.h"
#include "common/system/buffer_pool.h"
#include "common/wire/messages.h"
#include "common/wire/payload.h"
#include "server/chunk/chunk_state.h"
#include "server/shard/shard_counts.h"
#include "server/shard/shard_job.h"
#include "server/shard/shard_output.h"

namespace tributary {

// A node's push of the open round.
struct Contribution {
  Payload frame;
  PeerId from;
  std::uint64_t weight = 0;
  bool present = false;
  std::uint32_t summed = 0;  // so many nodes' frames are in this one; 0: its own is in another's
  bool redo = false;
  GateDecision gate;      // Push::gate
  HeldSettings settings;  // Push::settings
};

// The pushes of a chunk that wait for the others.
struct OpenRound {
  std::uint32_t arrived = 0;
  std::vector<Contribution> pushes;  // by node
};

struct ShardChunk {
  ChunkIndex index;
  std::size_t position = 0;  // by which rules and parts keep their data of it
  std::size_t elements = 0;
  std::size_t groups = 1;         // of tensors that it holds
  std::vector<NodeRank> nodes{};  // of the view, that hold it and push it, ascending
  std::uint32_t copies = 1;       // ViewPlan::copies()
  bool initialised = false;
  bool captured = false;  // for the snapshot that is named
  ChunkState state;
  BufferRef encoded;  // payload of answers, where it is not the parameters
  OpenRound round;    // ShardRounds'
  // Jobs that recover: what nodes held before the last round (docs/recovery.md), and the same as answers carry it, once
  // a node was answered so. A view begins where the chunk that is behind is; a node that lost what it had gets these.
  BufferRef previous, previous_encoded;

  const BufferRef& answer() const { return encoded ? encoded : state.params; }
  std::size_t array_bytes() const { return elements * sizeof(float); }
  bool held_by(NodeRank node) const { return std::ranges::binary_search(nodes, node); }
};

// One step of the optimizer.
struct ShardStep {
  std::span<const PushFrame> frames;
  std::uint64_t weight = 1;
  std::uint64_t position = 1;          // in the learning rate's schedule
  SaidSettings settings;               // that the pushes name
  std::optional<float> scale;          // of the sum; none: 1 / weight
  const Encoding* encoding = nullptr;  // of the frames; null: the job's push encoding
};

class ShardChunks {
 public:
  // All outlive this.
  ShardChunks(ShardJob job, BufferPool& pool, ShardOutput& output, ShardStats& stats);
  void reopen(ShardJob job);  // on the same chunks

  const ShardJob& job() const { return job_; }
  const Encoding& push() const { return *job_.plan().push; }
  const Encoding& pull() const { return *job_.plan().pull; }
  ShardOutput& output() { return output_; }
  ShardStats& stats() { return stats_; }
  std::span<ShardChunk> all() { return chunks_; }
  std::span<const ShardChunk> all() const { return chunks_; }
  ChunkKey key(const ShardChunk& chunk, NodeRank node) const {
    return {job_.view->job, job_.view->view, node, chunk.index};
  }

  ShardChunk* find(ChunkIndex chunk);  // null: not this lane's
  const ShardChunk& at(ChunkIndex chunk) const;
  // Returns a message's chunk; null: the message is of another view, node or chunk, and has been refused.
  ShardChunk* find(PeerId from, const ChunkKey& key, Round round);
  void reject(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message);
  // Checks a frame whose length is right; false: it has been refused. Not for second copies: their authors may be
  // writing the next frame there.
  bool sound(PeerId from, const ShardChunk& chunk, const Push& push, const Payload& frame);
  void answer(PeerId to, const Answer& header, const BufferRef& payload);

  // A frame waits for others, or is released.
  void hold(std::size_t bytes);
  void let_go(std::size_t bytes);
  void shorten(std::size_t bytes);  // so much of one is released

  // Returns a buffer of the pool; empty, and counted, if there is none.
  BufferRef acquire(std::size_t bytes);
  // Returns the buffer itself if it has no other reader, else a fresh one of its size, as above.
  BufferRef writable(const BufferRef& buffer);
  std::size_t available() { return pool_.available(); }

  Error no_buffer(const ShardChunk& chunk) const;  // of a chunk that is restored

  // Gives a new chunk its buffers: all of them, or none (false).
  bool allocate(ShardChunk& chunk);
  // It has its values.
  void initialise(ShardChunk& chunk);
  bool initialised() const { return initialised_ == chunks_.size(); }

  // Sums and steps. Buffers without other readers are written in place; sent answers and snapshots never change under
  // their readers. Parameters that nodes hold become ShardChunk::previous, if the job recovers. False, or an exception
  // for want of memory: the chunk is unchanged, the pool has no buffer.
  bool step(ShardChunk& chunk, const ShardStep& step);
  // A round without a step: answers that carry a change carry none. False as above.
  bool leave(ShardChunk& chunk);

  // A chunk has come to this version (with clocks: all nodes have).
  void reach(Version version) { furthest_ = std::max(furthest_, version); }
  Version furthest() const { return furthest_; }

  // The snapshot that chunks are captured for when they come to its round.
  const std::optional<Round>& snapshot() const { return snapshot_; }
  void name_snapshot(std::optional<Round> round) { snapshot_ = round; }
  bool captures(const ShardChunk& chunk, Version at) const {
    return snapshot_ && !chunk.captured && at.value == snapshot_->value;
  }

 private:
  static constexpr std::uint32_t kNotOurs = ~0u;  // in local_
  void begin_view();
  void keep_previous(ShardChunk& chunk, BufferRef before);

  ShardJob job_;
  BufferPool& pool_;
  ShardOutput& output_;
  ShardStats& stats_;
  std::vector<ShardChunk> chunks_;
  std::vector<std::uint32_t> local_;  // chunk index -> position in chunks_, or kNotOurs
  std::size_t initialised_ = 0;
  Version furthest_;
  std::optional<Round> snapshot_;
  StepRuns runs_;
};

}  // namespace tributary

// ShardCore: the rounds of one job's chunks on one lane. Pure: no threads, sockets, clocks or disks; messages in,
// actions out through ShardOutput. LaneJobs and the simulator (tests/sim) drive the same class. Thread rule: the
// lane's.
//
// ShardChunks has the chunks and their step; a RoundRule decides when pushes are applied and answered. Idempotence: a
// push names (job, view, node, round, chunk), and a second copy changes nothing. A core outlives its view
// (docs/recovery.md). Snapshots are copy-on-write by reference count (docs/snapshots.md). If the pool has no buffer for
// a step, a round stays open with all its frames, and the next query or second copy of a push tries again: nothing is
// lost but time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "common/system/buffer_pool.h"
#include "common/wire/messages.h"
#include "common/wire/payload.h"
#include "server/chunk/chunk_state.h"
#include "server/shard/round_rule.h"
#include "server/shard/shard_chunks.h"
#include "server/shard/shard_job.h"
#include "server/shard/shard_output.h"

namespace tributary {

class ShardCore {
 public:
  // pool: blocks of at least chunk_elements * 4 bytes, room for chunk_arrays(job).most() of each chunk.
  // Chunks start uninitialised (waiting for Init).
  ShardCore(ShardJob job, BufferPool& pool, ShardOutput& output);

  // Restores a chunk instead of waiting for Init; the values are copied. REQUIRES: chunk is owned by this lane and not
  // yet initialised. kWrongLength if sizes do not fit, kLimit if the pool is empty. If the job has another number of
  // nodes now, the first node that holds the chunk gets the sum of all residuals: nothing unsent is lost. A node's
  // pushes up to its clock are in the state, and repetitions are not applied again. With another number of nodes the
  // saved clocks are void, and all nodes' clocks begin at job().view->start. A state without a gate decision gets that
  // of a fresh job.
  Status restore(ChunkIndex chunk, const ChunkState& saved);

  // Continues from this state in another view, which may have another number of nodes. REQUIRES: stop(false, ...).
  // kTopology: the view is not of the same training on the same chunks.
  Status reopen(ShardJob job);

  void on_push(PeerId from, const Push& push, Payload frame);
  void on_init(PeerId from, const Init& init, std::span<const std::byte> values);
  void on_pull(PeerId from, const Pull& pull);
  void on_query(PeerId from, const Query& query);

  // Steps the chunks whose sums wait for this decision. A second copy, or a decision about another round than the open
  // one, changes nothing.
  void decide(const RoundDecision& decision);
  // Returns the newest decision that this core has applied, for the coordinator, because chunks with that decision send
  // no facts of the round. Nothing if there is none. (After a loss some chunks may be a round behind others.)
  std::optional<RoundFacts> decided() const { return rule_->decided(); }

  // Captures every chunk when it reaches version `round`, with clocks when its slowest node does (at once, if it is
  // there). A nearer round replaces one that no chunk has reached. Returns false, and captures nothing, if a chunk is
  // already past the round (with residuals: so near that its nodes may not know in time), if a snapshot is still being
  // captured, or if so much of an earlier one is still held that this one could make training wait for buffers.
  bool snapshot_at(Round round);
  // The view is over: drops held frames; with `keep`, captures every chunk as it is and requires all at version
  // `round` (with clocks: every node's at least there). Returns false (nothing captured) if a chunk is at another
  // version or not initialised. With residuals it may return true before all nodes have sent theirs: then keeping()
  // until they are there and everything is captured.
  bool stop(bool keep, Round round);
  bool keeping() const { return kept_round_.has_value(); }

  const ShardJob& job() const { return chunks_.job(); }
  const ShardStats& stats() const { return stats_; }
  // Return the least and the largest version of a chunk; with clocks, of its slowest node's clock.
  Version min_version() const;
  Version max_version() const { return chunks_.furthest(); }
  // Returns, with clocks, the node's least and largest clock over all chunks.
  std::pair<Round, Round> clock_range(NodeRank node) const { return rule_->clock_range(node); }
  std::size_t chunks() const { return chunks_.all().size(); }
  bool initialised() const { return chunks_.initialised(); }
  // For tests and the simulator's digest. REQUIRES: chunk is owned and initialised.
  std::span<const float> params(ChunkIndex chunk) const { return chunks_.at(chunk).state.params.floats(); }
  Version version(ChunkIndex chunk) const { return chunks_.at(chunk).state.version; }

 private:
  // Captures the chunk if it has reached the named snapshot's round, or has the residuals that a stop waits for.
  void look_at(ShardChunk& chunk);
  void capture(ShardChunk& chunk, Round round);

  ShardStats stats_;
  ShardOutput& output_;
  ShardChunks chunks_;
  const std::unique_ptr<RoundRule> rule_;
  std::size_t uncaptured_ = 0;       // chunks that the named snapshot lacks
  std::optional<Round> kept_round_;  // a stop that waits for residuals
};

}  // namespace tributary

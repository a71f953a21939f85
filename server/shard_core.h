// ShardCore: the round logic of one job's chunks on one lane. Pure: no threads, sockets, clocks or disks; messages in,
// actions out through ShardOutput. LaneJobs and the simulator (tests/sim) drive the same class.
//
// Synchronous rounds, chunk by chunk: a chunk at version v collects one push of round v+1 from every node of the view;
// the last one triggers the fused sum and step (common/fused_step.h), and every contributor gets the new parameters.
// Chunks do not wait for each other. At most one round of a chunk is open,
// so at most `nodes` frames of a chunk are held. Every push is acknowledged with a receipt at once, if there are
// several nodes.
//
// Idempotence: a push names (job, view, node, round, chunk). A second copy of an open push changes nothing (receipt
// again); a copy of a completed one is answered with the parameters as they are; older ones are dropped.
//
// Recovery (shard_recovery.cc): a core outlives its view, and goes on in the next one. With `recovers` a chunk keeps
// what nodes hold of it before its last step, because a view begins where the chunk that is behind is: a node that lost
// what it had then gets those, and its push of the round that is complete here already changes nothing. What a server
// lost, the nodes push again round by round (Push::redo), each acknowledged with a receipt when it is applied.
//
// Snapshots are copy-on-write by reference count: when a chunk reaches the snapshot round its buffers are shared with
// the sink; the next step then finds them not unique and writes into fresh ones.
//
// Encodings with error feedback: what a node could not say in its push (its residual) is state too, kept by the node.
// Answers name the round of the next snapshot, and the pushes of that round bring the residual behind their frames; it
// is held with the chunk's snapshot. A node that leaves sends the residual alone, and stop() waits for all of them. On
// resuming, a node gets its residual back before the first answer.
//
// Clocks (modes ssp and async): push.round is the clock of its author, 1, 2, ... A push is applied on
// its own as it arrives, once, and in the order of its author's clock; chunk.version counts what was applied. Only its
// answer may wait, until the slowest node's clock on this chunk is near enough: then it brings the parameters as they
// are, hence its author's own push and all that are old enough. What was answered stays as it is until its author's
// next push (a repeated question gets the same bytes), so that several nodes may read, in shared memory, too, while the
// chunk goes on: with n nodes there are at most n + 1 generations of parameters. shard_clocks.cc has that part.
//
// A gate (shard_gate.cc): a round whose frames are all there is not applied before there is a decision
// about the whole of it, from outside. The frames are summed into one buffer of the pool and let go; their facts go out
// when all chunks of this core have them, and decide() applies the round. Each chunk keeps what was decided about its
// last two versions: answers say it, and a snapshot has it.
//
// If the pool has no fresh one (answers that a peer does not take, snapshots that are written slowly), the round stays
// open with all its frames and the senders have receipts; the next query or second copy of a push tries again. Nothing
// is lost but time. (With clocks the push is as good as lost, and is asked for again.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/buffer_pool.h"
#include "common/fused_step.h"
#include "common/job_plan.h"
#include "common/messages.h"
#include "common/payload.h"
#include "kernels/optimizer.h"

namespace tributary {

// A lane's part of a view. ViewPlan::start is the snapshot behind it.
struct ShardJob {
  std::shared_ptr<const ViewPlan> view;
  ShardIndex shard;
  LaneIndex lane;
  bool recovers = false;  // keep what nodes held before the last step. REQUIRES: no clocks

  const JobPlan& plan() const { return *view->plan; }
  // Jobs with clocks: the answer to clock c of a node waits while the slowest node's clock is below c - s. So what a
  // node computes from at clock c + 1 holds all pushes up to clock c - s, and its own. 0: nodes go clock by clock, as
  // in synchronous rounds, but every push is a step of its own.
  static constexpr std::uint64_t kUnbounded = ~0ull;
  std::uint64_t staleness() const {
    return plan().config.mode == Mode::kSsp ? plan().config.ssp.staleness : kUnbounded;
  }
};

// A node's residual of a chunk, fp32 at any address, in the memory that it was received in.
struct HeldResidual {
  std::uint32_t node = 0;
  Payload owner;
  std::span<const std::byte> values;
  BufferRef restored;  // these values, if they came out of the store: the node gets them back
};

// The same out of the store.
struct NodeResidual {
  std::uint32_t node = 0;
  std::span<const float> values;
};

// What belongs to a chunk beside parameters and optimizer state, if the job's encodings need it.
struct CompressionState {
  std::span<const float> estimate;  // pull delta: what all workers hold; empty: the parameters
  std::uint32_t nodes = 0;          // of the view that kept it
  std::span<const NodeResidual> residuals;
};

// State of one chunk at one version: shared buffers, never written while the snapshot holds them.
struct ChunkSnapshot {
  JobId job;
  ViewId view;
  Round round;  // the consistent snapshot this belongs to; equals version in synchronous mode
  ChunkIndex chunk;
  Version version;
  std::uint64_t step = 0;  // rounds applied (differs from version once rounds can be skipped)
  BufferRef params;
  BufferRef slots[kernels::kMaxSlots];
  BufferRef estimate;  // delta encodings only
  std::uint32_t nodes = 0;
  std::vector<HeldResidual> residuals;  // ascending nodes; those without one have 0
  std::vector<std::uint64_t> clocks;    // by node: its newest push that is in here; empty in synchronous mode
  GateDecision gate;                    // about the round that made it
};

class ShardOutput {
 public:
  virtual ~ShardOutput() = default;
  // `payload` is shared: it stays unchanged while a reference is held.
  virtual void answer(PeerId to, const Answer& header, const BufferRef& payload) = 0;
  // `values` likewise.
  virtual void residual(PeerId to, const Residual& header, const BufferRef& values) = 0;
  virtual void receipt(PeerId to, const Receipt& header) = 0;
  virtual void resend(PeerId to, const Resend& header) = 0;
  virtual void error(PeerId to, const ErrorReply& header) = 0;
  virtual void captured(ChunkSnapshot snapshot) = 0;
  // With a gate: every chunk of this core has its facts of a round.
  virtual void facts(const RoundFacts& /*facts*/) {}
};

// Bound on a push's weight, so that totals over nodes cannot overflow.
inline constexpr std::uint64_t kMaxWeight = 1ull << 40;

// Plain counters since the job was opened on this lane.
struct ShardStats {
  std::uint64_t pushes = 0, duplicates = 0, rejected = 0, answers = 0, steps = 0;
  std::uint64_t push_bytes = 0, answer_bytes = 0;
  std::uint64_t out_of_place_steps = 0;           // steps that found a buffer still shared ...
  std::uint64_t shared_buffers = 0;               // ... and the buffers that they replaced
  std::uint64_t starved = 0;                      // steps and initial values put off because the pool was empty
  std::uint64_t held_frames = 0, held_bytes = 0;  // now
  std::uint64_t max_held_bytes = 0;
  std::uint64_t withheld = 0;  // clocks: answers that wait for slower nodes now
};

class ShardCore {
 public:
  // pool: blocks of at least chunk_elements * 4 bytes, room for pool_blocks().
  // Chunks start uninitialised (waiting for Init).
  ShardCore(ShardJob job, BufferPool& pool, ShardOutput& output);

  // Blocks that `chunks` chunks may need at once: parameters, state, encoded answers, one more copy of what is being
  // sent, or read by a worker on this machine that is slow, and one copy-on-write snapshot; and the residuals of a
  // resumed job's nodes, until the first round is complete. Bounds the pool; steady state uses chunks * (1 + slots) and
  // what is in flight. clocks: also the answers that nodes have and have not pushed after. gate: also the sums that
  // wait for a decision.
  static std::size_t pool_blocks(std::size_t chunks, int slots, EncodingSpec pull, EncodingSpec push = {},
                                 std::uint32_t nodes = 1, bool recovers = false, bool clocks = false,
                                 bool gate = false);
  // Of those, what is in use as long as nothing is being sent and no snapshot held. clocks: how many nodes have one.
  static std::size_t steady_blocks(std::size_t chunks, int slots, EncodingSpec pull, bool recovers = false,
                                   std::uint32_t clocks = 0, bool gate = false);

  // Restores a chunk instead of waiting for Init. Sizes: chunk elements each. REQUIRES: chunk is owned by this lane and
  // not yet initialised. kWrongLength if sizes do not fit, kLimit if the pool is empty. If the job has another number
  // of nodes now, node 0 gets the sum of all residuals: nothing of what was not sent is lost. clocks: as captured; a
  // node's pushes up to its clock are in the state, and are not applied again when it repeats them. With another number
  // of nodes they are nobody's, and all nodes' clocks begin at job().start. gate: as captured; kNone: as a fresh job's.
  Status restore(ChunkIndex chunk, Version version, std::uint64_t step, std::span<const float> params,
                 std::span<const std::span<const float>> slots, const CompressionState& compression = {},
                 std::span<const std::uint64_t> clocks = {}, const GateDecision& gate = {});

  // The state goes on in another view, which may have another number of nodes. REQUIRES: stop(false, ...).
  // kTopology: it is not the same training on the same chunks.
  Status reopen(ShardJob job);

  void on_push(PeerId from, const Push& push, Payload frame);
  void on_init(PeerId from, const Init& init, std::span<const std::byte> values);
  void on_pull(PeerId from, const Pull& pull);
  void on_query(PeerId from, const Query& query);

  // What was decided about a round: chunks whose sums wait for it are stepped. A second copy, or one of another round
  // than the open one, changes nothing.
  void decide(const RoundDecision& decision);
  // The newest decision that this core has applied, for whoever decides: a chunk that has it already sends no facts of
  // that round. Nothing if there is none. (After a loss some chunks may be a round behind others.)
  std::optional<RoundFacts> decided() const;

  // Capture every chunk when it reaches version `round`, with clocks when its slowest node does (at once, if it is
  // there). A nearer round takes the place of one that no chunk has reached. False, and nothing is captured, if a chunk
  // is already past it (with residuals: so near that its nodes may not know in time), if a snapshot is still being
  // captured, or if so much of an earlier one is still held that this
  // one could keep the training waiting for buffers.
  bool snapshot_at(Round round);
  // The view is over: drops held frames; with `keep`, captures every chunk as it is and requires all at version
  // `round` (with clocks: every node's at least there). Returns false (nothing captured) if a chunk is at another
  // version or not initialised. With residuals it may return true before all nodes have sent theirs: then keeping()
  // until they are there and everything is captured.
  bool stop(bool keep, Round round);
  bool keeping() const { return kept_round_.has_value(); }

  const ShardJob& job() const { return job_; }
  const ShardStats& stats() const { return stats_; }
  // Of a chunk's versions; with clocks: of its slowest nodes' clocks, which is how far all nodes have come.
  Version min_version() const;
  Version max_version() const { return max_version_; }
  // With clocks: the node's on the chunks where it is last and furthest.
  std::pair<Round, Round> clock_range(NodeRank node) const;
  std::size_t chunks() const { return chunks_.size(); }
  bool initialised() const { return initialised_ == chunks_.size(); }
  // For tests and the simulator's digest. REQUIRES: chunk is owned and initialised.
  std::span<const float> params(ChunkIndex chunk) const;
  Version version(ChunkIndex chunk) const;

 private:
  struct Contribution {
    Payload frame;
    PeerId from;
    std::uint64_t weight = 0;
    bool present = false;
    bool redo = false;
    GateDecision gate;  // Push::gate
  };
  struct WaitingPull {
    PeerId from;  // value 0: none
    Version version;
  };
  // A node's clock on one chunk. asked <= applied: after a restore the state may be ahead of what its author repeats.
  struct NodeClock {
    std::uint64_t applied = 0;  // newest push that is in the parameters
    std::uint64_t asked = 0;    // newest push of this view: the one that is answered, or waits for it
    PeerId from;                // to whom
    bool last = false;          // wants everybody's pushes up to it
    bool withheld = false;      // its answer waits
    bool told = false;          // its answer was made
    BufferRef sent;             // that, as it went out, until the next push is applied
    std::uint64_t sent_slowest = 0;
  };
  struct Chunk {
    ChunkIndex index;
    std::size_t elements = 0;
    bool initialised = false;
    bool captured = false;  // for snapshot_round_
    Version version;
    std::uint64_t step = 0;
    BufferRef params;
    BufferRef previous;          // recovers: what nodes held before the last step; empty before the first one
    BufferRef previous_encoded;  // as answers carry them, once somebody was answered so
    BufferRef slots[kernels::kMaxSlots];
    BufferRef encoded;   // what answers carry, when the pull encoding is not fp32
    BufferRef estimate;  // pull delta: what the workers hold
    std::uint32_t arrived = 0;
    std::vector<Contribution> contributions;  // by node
    std::vector<WaitingPull> waiting_pulls;   // by node
    std::vector<HeldResidual> residuals;      // by node, at this version; without owner: none
    std::vector<NodeClock> clocks;            // by node; empty in synchronous mode
    std::uint64_t slowest = 0;                // of them, applied
    BufferRef sum;                            // gate: of the open round's frames, which are gone
    GateFacts facts;                          // of it ...
    Round facts_of;                           // ... if it is this one
    GateDecision gate, gate_before;           // about the rounds that made this version, and the one before
  };
  struct Step {
    std::span<const PushFrame> frames;
    std::uint64_t weight = 1;
    std::uint64_t position = 1;          // in the learning rate's schedule
    std::optional<float> scale;          // of the sum; none: 1 / weight
    const Encoding* encoding = nullptr;  // of the frames; null: the job's push encoding
  };

  Chunk* find(PeerId from, const ChunkKey& key, Round round);
  void reject(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message);
  void settle(PeerId from, Chunk& chunk, const ChunkKey& key, Round round);
  bool complete(Chunk& chunk);
  void finish_round(Chunk& chunk);
  bool pass_gate(Chunk& chunk);
  const GateDecision* decision_for(const Chunk& chunk) const;
  bool apply_decided(Chunk& chunk, const GateDecision& decision);
  static PushFrame frame_of(const Contribution& contribution);
  bool take_facts(Chunk& chunk);
  void send_facts();
  std::uint64_t weight_of(const Chunk& chunk) const;
  void note_decision(Round round, const GateDecision& decision);
  bool apply(Chunk& chunk, const Step& step);
  BufferRef writable(const BufferRef& buffer);
  BufferRef before_previous(const Chunk& chunk);
  bool answer_no_change(Chunk& chunk);
  void take_residual(Chunk& chunk, PeerId from, const Push& push, Payload values);
  void hold_residual(Chunk& chunk, std::uint32_t node, Payload owner, std::span<const std::byte> values);
  bool all_residuals() const;
  enum class Reply { kRound, kWhole };  // the answer of a round; to a pull: the values themselves
  void send_answer(PeerId to, const Chunk& chunk, NodeRank node, Reply reply);
  void answer_clock_pull(PeerId to, Chunk& chunk, NodeRank node);
  void answer_pulls(Chunk& chunk);
  static const BufferRef& held_by_nodes(const Chunk& chunk) { return chunk.estimate ? chunk.estimate : chunk.params; }
  static void keep_previous(Chunk& chunk);
  void answer_previous(PeerId to, Chunk& chunk, NodeRank node);
  void size_for_nodes();
  bool restore_residuals(Chunk& chunk, const CompressionState& compression);
  void capture(Chunk& chunk, Round round);
  bool allocate(Chunk& chunk);
  void initialise(Chunk& chunk);
  // What a snapshot's round is about.
  Version progress(const Chunk& chunk) const {
    return job_.plan().has_clocks() ? Version(chunk.slowest) : chunk.version;
  }
  Status restore_clocks(Chunk& chunk, std::span<const std::uint64_t> clocks);
  void on_clock_push(PeerId from, Chunk& chunk, const Push& push, Payload frame);
  void on_clock_query(PeerId from, Chunk& chunk, const Query& query);
  bool advance(Chunk& chunk, NodeClock& clock, const Push& push, const Payload& frame);
  void release_answers(Chunk& chunk);
  void repeat_answer(Chunk& chunk, NodeRank node, Round round);
  void send_clock_answer(Chunk& chunk, NodeRank node);

  static constexpr std::uint32_t kNotOurs = ~0u;  // in local_

  ShardJob job_;
  BufferPool& pool_;
  ShardOutput& output_;
  const std::shared_ptr<const Encoding> push_;
  const std::shared_ptr<const Encoding> pull_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> local_;  // chunk index -> position in chunks_, or kNotOurs
  std::vector<PushFrame> frames_;     // scratch: one a node
  std::size_t initialised_ = 0;
  Version max_version_;
  std::optional<Round> snapshot_round_;
  std::optional<Round> kept_round_;  // a stop that waits for residuals
  std::size_t uncaptured_ = 0;
  Round decided_round_;  // gate: the newest round that a decision is known of ...
  GateDecision decided_;
  Round facts_round_;            // ... and the round that is being summed,
  std::size_t facts_there_ = 0;  // by so many chunks
  ShardStats stats_;
};

}  // namespace tributary

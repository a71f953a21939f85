// ShardGate: rounds that wait for one decision about the whole of them (docs/gate.md). The frames of a complete round
// are summed into one buffer and released. When all chunks of the lane have their sums, the facts go out; the decision
// makes the round's step. A part of ShardRounds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/math/gate_decision.h"
#include "server/shard/shard_chunks.h"

namespace tributary {

class ShardGate {
 public:
  explicit ShardGate(ShardChunks& chunks);
  void end_view();
  void restored(ShardChunk& chunk);  // chunk.state.gate is the decision kept with it

  // A round of a chunk has all its pushes. Returns the decision about it; none: the round waits (for a decision, or for
  // a buffer of the pool). `step` is that of the pushes and becomes the decided one; weight 0: no step.
  std::optional<GateDecision> pass(ShardChunk& chunk, ShardStep& step);
  // The round was applied with this decision.
  void applied(ShardChunk& chunk, const GateDecision& decision);
  // Returns the decision about the round before the chunk's last.
  const GateDecision& before(const ShardChunk& chunk) const { return sums_[chunk.position].before; }

  // Returns false if the decision is known already, or not about an open round.
  bool decide(const RoundDecision& decision);
  std::optional<RoundFacts> decided() const;

 private:
  struct Sum {
    BufferRef values;  // of the open round's frames, which are gone
    PushFrame frame;   // the same, as a step takes it
    GateFacts facts;   // of it ...
    Round of;          // ... if it is this one
    GateDecision before;
  };
  static Round open_round(const ShardChunk& chunk) { return Round(chunk.state.version.value + 1); }
  const GateDecision* decision_for(const ShardChunk& chunk) const;
  bool sum_up(ShardChunk& chunk, const ShardStep& step);
  void send_facts();
  void note(Round round, const GateDecision& decision);

  ShardChunks& chunks_;
  std::vector<Sum> sums_;  // by chunk
  Round decided_round_;    // the newest round that a decision is known of ...
  GateDecision decided_;
  Round facts_round_;            // ... and the round that is being summed,
  std::size_t facts_there_ = 0;  // by so many chunks
};

}  // namespace tributary

// ShardRounds: synchronous rounds, chunk by chunk. A chunk at version v collects one push of round v+1 from every node
// of the view that holds it; the last one triggers the fused sum and step, and every contributor gets the new
// parameters (docs/data-path.md). At most one round of a chunk is open, with at most `nodes` held frames; fp32
// frames that are siblings in the sum's tree become one, so that a single late node leaves O(log nodes) of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/shard/round_rule.h"
#include "server/shard/shard_digests.h"
#include "server/shard/shard_gate.h"
#include "server/shard/shard_residuals.h"

namespace tributary {

class ShardRounds final : public RoundRule {
 public:
  explicit ShardRounds(ShardChunks& chunks);

  void begin_view() override;
  void end_view() override;
  void push(PeerId from, ShardChunk& chunk, const Push& push, Payload&& frame) override;
  void pull(PeerId from, ShardChunk& chunk, const Pull& pull) override;
  void query(PeerId from, ShardChunk& chunk, const Query& query) override;
  void decide(const RoundDecision& decision) override;
  std::optional<RoundFacts> decided() const override;
  Status restore(ShardChunk& chunk, const ChunkState& saved) override;
  void initialised(ShardChunk& chunk) override { answer_pulls(chunk); }
  Version progress(const ShardChunk& chunk) const override { return chunk.state.version; }
  bool stands_for(const ShardChunk& chunk, Round round) const override {
    return chunk.state.version.value == round.value;
  }
  Round next_snapshot() const override;
  bool complete() const override { return !residuals_ || residuals_->complete(); }
  void captured(ShardChunk& chunk) override;

  // Frames that become one. (Two would double the passes over memory; a cluster of four has none of them.)
  static constexpr std::size_t kSiblings = 4;

 private:
  struct WaitingPull {
    PeerId from;  // value 0: none
    Pull pull;
  };

  bool refuse(PeerId from, const ShardChunk& chunk, const Push& push);
  bool all_there(const ShardChunk& chunk) const { return chunk.round.arrived == chunk.nodes.size(); }
  // The sum over the pushes that are there.
  std::uint64_t weight(const ShardChunk& chunk) const;
  void take_residual(PeerId from, ShardChunk& chunk, const Push& push, Payload values);
  void push_held(PeerId from, ShardChunk& chunk, const ChunkKey& key, Round round);
  void add_siblings(ShardChunk& chunk, NodeRank newest);
  bool complete_round(ShardChunk& chunk);
  void finish(ShardChunk& chunk);
  void answer_pulls(ShardChunk& chunk);
  void answer_previous(ShardChunk& chunk, PeerId to, const Pull& pull);
  // whole: what is answered so.
  void send_answer(PeerId to, const ShardChunk& chunk, NodeRank node, const Pull* whole = nullptr);

  ShardChunks& chunks_;
  ShardDigests digests_;
  // Present only in jobs that need them:
  std::optional<ShardResiduals> residuals_;
  std::optional<ShardGate> gate_;
  std::vector<std::vector<WaitingPull>> pulls_;  // by chunk and node
  std::vector<PushFrame> frames_;                // scratch: one a node that pushes
};

}  // namespace tributary

// ShardClocks: modes where every node has a clock of its own, ssp and async (docs/staleness.md). A push is applied on
// its own as it arrives, once, in the order of its author's clock. Its answer may wait until the slowest node is near
// enough; then it brings the parameters as they are, which stay as they are until its author's next push.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "server/shard/round_rule.h"

namespace tributary {

class ShardClocks final : public RoundRule {
 public:
  explicit ShardClocks(ShardChunks& chunks);

  void begin_view() override {}  // its state does not outlive a view
  void end_view() override;
  void push(PeerId from, ShardChunk& chunk, const Push& push, Payload&& frame) override;
  void pull(PeerId from, ShardChunk& chunk, const Pull& pull) override;
  void query(PeerId from, ShardChunk& chunk, const Query& query) override;
  Status restore(ShardChunk& chunk, const ChunkState& saved) override;
  void initialised(ShardChunk& chunk) override;
  Version progress(const ShardChunk& chunk) const override { return Version(clocks_[chunk.position].slowest); }
  bool stands_for(const ShardChunk& chunk, Round round) const override {
    return clocks_[chunk.position].slowest >= round.value;
  }
  Round next_snapshot() const override { return Round(chunks_.furthest().value); }
  std::pair<Round, Round> clock_range(NodeRank node) const override;

 private:
  // Goes with the node's clock in ChunkState::clocks, which is its newest push in the parameters. asked <= that clock:
  // after a restore the state may be ahead of the node's repetitions.
  struct NodeClock {
    std::uint64_t asked = 0;  // newest push of this view: the one that is answered, or waits for it
    PeerId from;              // to whom
    PeerId pulls;             // before the chunk has its parameters; value 0: none
    bool last = false;        // waits for all nodes' pushes up to it
    bool withheld = false;    // its answer waits
    bool told = false;        // its answer was made
    BufferRef sent;           // that, as it went out, until the next push is applied
    std::uint64_t sent_slowest = 0;
  };
  struct ChunkClocks {
    std::vector<NodeClock> nodes;
    std::uint64_t slowest = 0;  // of ChunkState::clocks
  };

  NodeClock& clock_of(const ShardChunk& chunk, NodeRank node) { return clocks_[chunk.position].nodes[node.value]; }
  bool apply(ShardChunk& chunk, const Push& push, const Payload& frame);
  void release_answers(ShardChunk& chunk);
  void repeat_answer(ShardChunk& chunk, NodeRank node, Round round);
  void send_answer(ShardChunk& chunk, NodeRank node);

  ShardChunks& chunks_;
  std::vector<ChunkClocks> clocks_;  // by chunk
};

}  // namespace tributary

// ShardResiduals: error feedback on the server (docs/encodings.md). What a node could not say in its push is kept by
// the node; of a round that is captured it is a part of the chunk's state (ChunkState::residuals), and a node of a job
// that is resumed gets it back. A part of ShardRounds.
#pragma once

#include <cstdint>
#include <vector>

#include "server/shard/shard_chunks.h"

namespace tributary {

class ShardResiduals {
 public:
  explicit ShardResiduals(ShardChunks& chunks) : chunks_(chunks), returns_(chunks.all().size()) {}
  void begin_view();

  // Of the chunk at its version. `values`: elements fp32 at any address.
  void hold(ShardChunk& chunk, NodeRank node, Payload values);
  void drop(ShardChunk& chunk);
  // Copies what was kept with `saved`: of the same nodes each its own; of others, the first that holds the chunk gets
  // the sum, so that nothing of what was not sent is lost. False: the pool has no buffer.
  bool restore(ShardChunk& chunk, const ChunkState& saved);
  // Sends the node what restore() has for it. False: nothing (any more).
  bool give_back(PeerId to, const ShardChunk& chunk, NodeRank node);
  // Every chunk has every node's.
  bool complete() const;

 private:
  ShardChunks& chunks_;
  std::vector<std::vector<BufferRef>> returns_;  // by chunk and node: until it has pushed after it
};

}  // namespace tributary

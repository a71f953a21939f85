// ShardResiduals: error feedback on the server (docs/encodings.md). Nodes keep the residuals of their pushes. For a
// captured round they are also a part of the chunk's state (ChunkState::residuals), and nodes of a resumed job get them
// back. A part of ShardRounds.
#pragma once

#include <cstdint>
#include <vector>

#include "server/shard/shard_chunks.h"

namespace tributary {

class ShardResiduals {
 public:
  explicit ShardResiduals(ShardChunks& chunks) : chunks_(chunks), returns_(chunks.all().size()) {}
  void begin_view();

  // Takes a node's residual of the chunk at its version. `values`: elements fp32 at any address.
  void hold(ShardChunk& chunk, NodeRank node, Payload values);
  void drop(ShardChunk& chunk);
  // Copies the residuals in `saved`. The same nodes get each its own; of other nodes, the first that holds the chunk
  // gets the sum, so that nothing unsent is lost. False: the pool has no buffer.
  bool restore(ShardChunk& chunk, const ChunkState& saved);
  // Sends the node its residual of restore(). False: there is none (any more).
  bool give_back(PeerId to, const ShardChunk& chunk, NodeRank node);
  // Every chunk has every node's.
  bool complete() const;

 private:
  ShardChunks& chunks_;
  std::vector<std::vector<BufferRef>> returns_;  // by chunk and node: until it has pushed after it
};

}  // namespace tributary

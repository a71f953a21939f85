// ShardPrevious: what nodes held of each chunk before its last step (docs/recovery.md). A view begins where the chunk
// that is behind is; a node that lost what it had then gets these values of the others. A part of ShardRounds.
#pragma once

#include <vector>

#include "server/shard/shard_chunks.h"
#include "server/shard/shard_digests.h"

namespace tributary {

class ShardPrevious {
 public:
  explicit ShardPrevious(ShardChunks& chunks) : chunks_(chunks), kept_(chunks.all().size()) {}

  bool has(const ShardChunk& chunk) const { return static_cast<bool>(kept_[chunk.position].values); }
  // The buffer that the next step may write what nodes hold into; empty (and counted) if the pool has none. Readers of
  // the old values had their answer two rounds ago.
  BufferRef target(const ShardChunk& chunk);
  // Keeps what nodes held before the round that is complete now.
  void keep(const ShardChunk& chunk, BufferRef before) { kept_[chunk.position] = {std::move(before), {}}; }
  void answer(PeerId to, const ShardChunk& chunk, const Pull& pull, const GateDecision& gate, ShardDigests& digests);

 private:
  struct Kept {
    BufferRef values;   // empty before the first round
    BufferRef encoded;  // as answers carry them, once a node was answered so
  };
  ShardChunks& chunks_;
  std::vector<Kept> kept_;
};

}  // namespace tributary

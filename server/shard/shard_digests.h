// ShardDigests: answers to pulls of nodes that have values of a chunk from an earlier view and say their digest. If
// that is the digest of what the answer would bring, as the node would have it decoded, the answer has no payload. The
// bytes alone decide: no node can be wrong about what it has. A part of ShardRounds.
#pragma once

#include <vector>

#include "common/base/checksum.h"
#include "server/shard/shard_chunks.h"

namespace tributary {

class ShardDigests {
 public:
  explicit ShardDigests(ShardChunks& chunks) : chunks_(chunks), known_(chunks.all().size()) {}

  void begin_view() { known_.assign(known_.size(), {}); }
  // REQUIRES: in a view the payloads of one chunk and version always decode to the same values.
  void answer(PeerId to, const ShardChunk& chunk, const Pull& pull, Answer header, const BufferRef& payload);

 private:
  struct Known {  // of the version that was asked for last; {}: of none
    Version version;
    Checksum128::Value digest;
  };
  const Checksum128::Value& digest(const ShardChunk& chunk, const Answer& header, const BufferRef& payload);

  ShardChunks& chunks_;
  std::vector<Known> known_;    // by chunk
  std::vector<float> decoded_;  // scratch
};

}  // namespace tributary

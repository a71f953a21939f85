// ShardOutput: the actions of a shard's rounds. Thread rule: called on the lane's thread.
#pragma once

#include "common/system/buffer_pool.h"
#include "common/wire/messages.h"
#include "common/wire/payload.h"
#include "server/chunk/chunk_state.h"

namespace tributary {

class ShardOutput {
 public:
  virtual ~ShardOutput() = default;
  // values: an answer's or a residual's payload, which stays unchanged while a reference is held; else empty.
  virtual void send(PeerId to, const DataMessage& message, const BufferRef& values) = 0;
  virtual void captured(ChunkSnapshot snapshot) = 0;
  // With a gate: every chunk of this core has its facts of a round.
  virtual void facts(const RoundFacts& /*facts*/) {}
};

}  // namespace tributary

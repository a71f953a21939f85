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
  // `payload` is shared: it stays unchanged while a reference is held.
  virtual void answer(PeerId to, const Answer& header, const BufferRef& payload) = 0;
  // `values` likewise.
  virtual void residual(PeerId to, const Residual& header, const BufferRef& values) = 0;
  virtual void ack(PeerId to, const Ack& header) = 0;
  virtual void resend(PeerId to, const Resend& header) = 0;
  virtual void error(PeerId to, const ErrorReply& header) = 0;
  virtual void captured(ChunkSnapshot snapshot) = 0;
  // With a gate: every chunk of this core has its facts of a round.
  virtual void facts(const RoundFacts& /*facts*/) {}
};

}  // namespace tributary

// RoundRule: when pushes of a chunk are applied, and when they are answered. A job has one of two, chosen when it is
// opened: ShardRounds (modes sync and local_sgd) or ShardClocks (ssp and async). Owned by ShardCore, which has checked
// a message's view and the length of its payload. Thread rule: the lane's.
#pragma once

#include <optional>
#include <utility>

#include "common/base/result.h"
#include "common/wire/messages.h"
#include "common/wire/payload.h"
#include "server/shard/shard_chunks.h"

namespace tributary {

class RoundRule {
 public:
  virtual ~RoundRule() = default;

  // The job has this view's nodes now.
  virtual void begin_view() = 0;
  // The view is over: frames of open rounds are dropped, and no node waits for an answer.
  virtual void end_view() = 0;

  // Takes the frame if it is held.
  virtual void push(PeerId from, ShardChunk& chunk, const Push& push, Payload&& frame) = 0;
  virtual void pull(PeerId from, ShardChunk& chunk, const Pull& pull) = 0;
  virtual void query(PeerId from, ShardChunk& chunk, const Query& query) = 0;
  // With a gate: see ShardCore.
  virtual void decide(const RoundDecision& /*decision*/) {}
  virtual std::optional<RoundFacts> decided() const { return std::nullopt; }

  // The chunk's arrays and progress are those of `saved`, which may be of other nodes, or of a job of another kind.
  virtual Status restore(ShardChunk& chunk, const ChunkState& saved) = 0;
  // The chunk has its parameters: nodes that pulled them before get them.
  virtual void initialised(ShardChunk& chunk) = 0;

  // How far all nodes have come with a chunk. A snapshot's round is about this.
  virtual Version progress(const ShardChunk& chunk) const = 0;
  // May the state of the chunk as it is be kept as that of `round`?
  virtual bool stands_for(const ShardChunk& chunk, Round round) const = 0;
  // The first round that a snapshot can still be named for.
  virtual Round next_snapshot() const = 0;
  // Nothing is missing that belongs to the state, as nodes' residuals are.
  virtual bool complete() const { return true; }
  virtual void captured(ShardChunk& /*chunk*/) {}

  // With clocks: a node's on the chunks where it is last and furthest.
  virtual std::pair<Round, Round> clock_range(NodeRank /*node*/) const { return {}; }
};

}  // namespace tributary

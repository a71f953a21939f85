// A lane's chunks and their reducer, called with numbers of chunks.
#pragma once

#include "worker/reduce/node_reducer.h"

namespace tributary::testing {

struct NumberedReducer {
  LaneChunks& chunks;
  NodeReducer& reducer;

  void reduce(ChunkIndex number, Round round, std::uint64_t weight, bool with_residual) const {
    LaneChunk& chunk = chunks.at(number);
    chunk.gradient.round = round;
    chunk.gradient.weight = weight;
    reducer.reduce(chunk, with_residual);
  }
  void deliver(ChunkIndex number, Version version, bool full, std::span<const std::byte> payload) const {
    reducer.deliver(chunks.at(number), version, full, payload);
  }
  void release(ChunkIndex number) const { reducer.release(chunks.at(number)); }
  void restore_residual(ChunkIndex number, std::span<const std::byte> values) const {
    reducer.restore_residual(chunks.at(number), values);
  }
  std::span<const std::byte> residual(ChunkIndex number) const { return reducer.residual(chunks.at(number)); }
};

}  // namespace tributary::testing

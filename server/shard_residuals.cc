// ShardCore's part in error feedback: the residuals of nodes, as state of a chunk.
#include <algorithm>
#include <memory>

#include "kernels/tree_sum.h"
#include "server/shard_core.h"

namespace tributary {

// False: the pool has no buffer for one.
bool ShardCore::restore_residuals(Chunk& chunk, const CompressionState& compression) {
  const auto hold_copy = [&](std::uint32_t node, auto&& fill) {
    BufferRef values = pool_.acquire(chunk.elements * sizeof(float));
    if (!values) return false;
    fill(values.floats().data());
    const std::span<const std::byte> bytes = values.bytes();
    hold_residual(chunk, node, Payload(BufferRef(values), bytes), bytes);
    chunk.residuals[node].restored = std::move(values);
    return true;
  };
  if (compression.nodes == job_.view->nodes) {
    for (const NodeResidual& residual : compression.residuals) {
      if (!hold_copy(residual.node, [&](float* out) { std::ranges::copy(residual.values, out); })) return false;
    }
  } else if (!compression.residuals.empty()) {
    std::vector<const float*> inputs;
    for (const NodeResidual& residual : compression.residuals) inputs.push_back(residual.values.data());
    return hold_copy(0, [&](float* out) { kernels::tree_sum(inputs, chunk.elements, out); });
  }
  return true;
}

// A node has left after this round. Its residual belongs to the state that stop() keeps.
void ShardCore::take_residual(Chunk& chunk, PeerId from, const Push& push, Payload values) {
  if (!chunk.initialised || push.round.value != chunk.version.value) {
    return reject(from, push.key, push.round, ErrorCode::kWrongRound,
                  "residual of chunk " + std::to_string(push.key.chunk.value) + " after round " +
                      std::to_string(push.round.value) + ", but the chunk is at version " +
                      std::to_string(chunk.version.value));
  }
  const std::span<const std::byte> bytes = values.bytes();
  hold_residual(chunk, push.key.node.value, std::move(values), bytes);
  output_.receipt(from, Receipt{push.key, push.round, true});
  if (kept_round_ && all_residuals()) {
    const Round round = *kept_round_;
    kept_round_.reset();
    for (Chunk& each : chunks_) capture(each, round);
  }
}

void ShardCore::hold_residual(Chunk& chunk, std::uint32_t node, Payload owner, std::span<const std::byte> values) {
  HeldResidual& mine = chunk.residuals[node];
  mine = {node, std::move(owner), values, {}};
}

bool ShardCore::all_residuals() const {
  return std::ranges::all_of(chunks_, [](const Chunk& chunk) {
    return std::ranges::none_of(chunk.residuals, [](const HeldResidual& held) { return held.owner.empty(); });
  });
}

}  // namespace tributary

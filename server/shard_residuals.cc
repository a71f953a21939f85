// ShardCore's part in error feedback: the residuals of nodes, as state of a chunk.
#include <algorithm>
#include <memory>

#include "kernels/tree_sum.h"
#include "server/shard_core.h"

namespace tributary {

// False: the pool has no buffer for one.
bool ShardCore::restore_residuals(Chunk& chunk, const ChunkState& saved) {
  const auto hold_copy = [&](std::uint32_t node, auto&& fill) {
    BufferRef values = pool_.acquire(chunk.elements * sizeof(float));
    if (!values) return false;
    fill(values.floats().data());
    chunk.state.residuals.push_back(NodeResidual::of(node, values));
    chunk.given_back[node] = std::move(values);
    return true;
  };
  if (saved.nodes == job_.nodes) {
    for (const NodeResidual& residual : saved.residuals) {
      const auto copy = [&](float* out) { std::ranges::copy(residual.bytes(), reinterpret_cast<std::byte*>(out)); };
      if (!hold_copy(residual.node, copy)) return false;
    }
  } else if (!saved.residuals.empty()) {
    std::vector<const float*> inputs;
    for (const NodeResidual& residual : saved.residuals) {
      inputs.push_back(reinterpret_cast<const float*>(residual.bytes().data()));
    }
    return hold_copy(0, [&](float* out) { kernels::tree_sum(inputs, chunk.elements, out); });
  }
  return true;
}

// A node has left after this round. Its residual belongs to the state that stop() keeps.
void ShardCore::take_residual(Chunk& chunk, PeerId from, const Push& push, Payload values) {
  if (!chunk.initialised || push.round.value != chunk.state.version.value) {
    return reject(from, push.key, push.round, ErrorCode::kWrongRound,
                  "residual of chunk " + std::to_string(push.key.chunk.value) + " after round " +
                      std::to_string(push.round.value) + ", but the chunk is at version " +
                      std::to_string(chunk.state.version.value));
  }
  hold_residual(chunk, push.key.node.value, std::move(values));
  output_.receipt(from, Receipt{push.key, push.round, true});
  if (kept_round_ && all_residuals()) {
    const Round round = *kept_round_;
    kept_round_.reset();
    for (Chunk& each : chunks_) capture(each, round);
  }
}

void ShardCore::hold_residual(Chunk& chunk, std::uint32_t node, Payload values) {
  std::vector<NodeResidual>& held = chunk.state.residuals;
  auto at = std::ranges::lower_bound(held, node, {}, &NodeResidual::node);
  if (at == held.end() || at->node != node) at = held.insert(at, NodeResidual{node, {}});
  *at = NodeResidual::of(node, std::move(values));
  chunk.given_back[node].reset();
}

void ShardCore::drop_residuals(Chunk& chunk) {
  chunk.state.residuals.clear();
  for (BufferRef& values : chunk.given_back) values.reset();
}

bool ShardCore::all_residuals() const {
  return std::ranges::all_of(chunks_, [&](const Chunk& chunk) { return chunk.state.residuals.size() == job_.nodes; });
}

}  // namespace tributary

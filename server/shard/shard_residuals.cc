#include "server/shard/shard_residuals.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/tree_sum.h"

namespace tributary {

void ShardResiduals::begin_view() {
  for (ShardChunk& chunk : chunks_.all()) {
    returns_[chunk.position].resize(chunks_.job().view->nodes);
    std::erase_if(chunk.state.residuals, [&](const NodeResidual& r) { return !chunk.held_by(NodeRank(r.node)); });
  }
}

void ShardResiduals::hold(ShardChunk& chunk, NodeRank node, Payload values) {
  std::vector<NodeResidual>& held = chunk.state.residuals;
  auto at = std::ranges::lower_bound(held, node.value, {}, &NodeResidual::node);
  if (at == held.end() || at->node != node.value) at = held.emplace(at);
  *at = NodeResidual::of(node.value, std::move(values));
  returns_[chunk.position][node.value].reset();
}

void ShardResiduals::drop(ShardChunk& chunk) {
  chunk.state.residuals.clear();
  for (BufferRef& values : returns_[chunk.position]) values.reset();
}

bool ShardResiduals::restore(ShardChunk& chunk, const ChunkState& saved) {
  const auto hold_copy = [&](std::uint32_t node, auto&& fill) {
    BufferRef values = chunks_.acquire(chunk.array_bytes());
    if (!values) return false;
    fill(values.floats().data());
    hold(chunk, NodeRank(node), Payload(BufferRef(values), values.bytes()));
    returns_[chunk.position][node] = std::move(values);
    return true;
  };
  if (saved.residuals.empty()) return true;
  const bool same_nodes =
      saved.nodes == chunks_.job().view->nodes &&
      std::ranges::all_of(saved.residuals, [&](const NodeResidual& r) { return chunk.held_by(NodeRank(r.node)); });
  if (same_nodes) {
    return std::ranges::all_of(saved.residuals, [&](const NodeResidual& residual) {
      return hold_copy(residual.node,
                       [&](float* out) { std::memcpy(out, residual.bytes().data(), residual.bytes().size()); });
    });
  }
  std::vector<const float*> inputs;
  for (const NodeResidual& residual : saved.residuals) {
    inputs.push_back(reinterpret_cast<const float*>(residual.bytes().data()));
  }
  return hold_copy(chunk.nodes.front().value, [&](float* out) { kernels::tree_sum(inputs, chunk.elements, out); });
}

bool ShardResiduals::give_back(PeerId to, const ShardChunk& chunk, NodeRank node) {
  const BufferRef& values = returns_[chunk.position][node.value];
  if (values) chunks_.output().send(to, Residual{chunks_.key(chunk, node), chunk.state.version}, values);
  return static_cast<bool>(values);
}

bool ShardResiduals::complete() const {
  return std::ranges::all_of(std::as_const(chunks_).all(), [&](const ShardChunk& chunk) {
    return chunk.state.residuals.size() == chunk.nodes.size();
  });
}

}  // namespace tributary

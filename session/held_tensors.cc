#include "session/held_tensors.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "common/base/assert.h"

namespace tributary {

Result<HeldTensors> HeldTensors::of(const AttachReply& reply, std::uint32_t nodes, std::uint32_t local_rank,
                                    std::vector<TensorSpec> tensors) {
  auto ranks = ModelRanks::of(reply.model_ranks, nodes, tensors);
  if (!ranks) return fail(ErrorCode::kMalformed, std::move(ranks.error().message));
  if (!ranks->whole() && ranks->by_rank().size() != reply.world_size) {
    return fail(ErrorCode::kMalformed, std::to_string(ranks->by_rank().size()) + " model ranks came for " +
                                           std::to_string(reply.world_size) + " ranks");
  }
  auto whole = Layout::with_owners(std::move(tensors), reply.chunk_elements, reply.owners);
  if (!whole) return tl::unexpected(whole.error());
  const NodeRank node(reply.node_rank);
  std::optional<Layout> layout = whole->part(ranks->of_node(node, nodes));
  TRIB_ASSERT(layout);  // every model rank holds something
  HeldTensors held(std::move(*layout), std::move(*ranks), reply.rank, !reply.resume);
  const std::span<const std::uint32_t> here = held.ranks_.of_node(node, nodes);
  for (std::size_t t = 0; t < held.layout_.tensors().size(); ++t) {
    if (held.layout_.tensors()[t].held_at(here, local_rank)) held.mine_.push_back(t);
  }
  return held;
}

std::optional<std::size_t> HeldTensors::find(std::size_t declared) const {
  const std::optional<std::size_t> tensor = layout_.tensor_in_part(declared);
  return tensor && std::ranges::binary_search(mine_, *tensor) ? tensor : std::nullopt;
}

std::size_t HeldTensors::at(std::size_t declared) const {
  const std::optional<std::size_t> tensor = find(declared);
  TRIB_ASSERT(tensor);
  return *tensor;
}

bool HeldTensors::gives_values(std::size_t tensor) const {
  return fresh_ && ranks_.first_with(layout_.tensors()[tensor]) == rank_;
}

}  // namespace tributary

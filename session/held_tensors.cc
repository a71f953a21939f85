#include "session/held_tensors.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/base/assert.h"
#include "common/base/model_ranks.h"

namespace tributary {
namespace {

std::vector<std::uint16_t> lanes_of(const Layout& layout, std::uint32_t begin, std::uint32_t end, std::uint16_t lanes) {
  std::vector<std::uint16_t> found;
  for (std::uint32_t c = begin; c < end && found.size() < lanes; ++c) {
    const std::uint16_t lane = layout.owner(ChunkIndex(c)).worker_lane(lanes);
    if (std::ranges::find(found, lane) == found.end()) found.push_back(lane);
  }
  return found;
}

}  // namespace

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
  const std::span<const std::uint32_t> here = ranks->of_node(node, nodes);
  std::optional<Layout> part = whole->part(here);
  TRIB_ASSERT(part);  // every model rank holds something
  HeldTensors held(std::move(*part), whole->tensors().size());
  const Layout& layout = held.layout_;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    if (!tensor.held_at(here, local_rank)) continue;
    const auto [begin, end] = layout.chunks_of(t);
    held.places_[layout.tensor_in_whole(t)] = static_cast<std::uint32_t>(held.mine_.size());
    held.mine_.push_back({t, layout.tensor_offset(t), tensor.elements(), begin, end,
                          lanes_of(layout, begin, end, reply.lanes),
                          !reply.resume && ranks->first_with(tensor) == reply.rank});
  }
  return held;
}

}  // namespace tributary

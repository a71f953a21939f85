#include "common/base/model_ranks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/assert.h"

namespace tributary {

Result<ModelRanks> ModelRanks::of(std::vector<std::uint32_t> by_rank, std::uint32_t nodes,
                                  std::span<const TensorSpec> tensors) {
  const auto no = [](const std::string& why) { return fail(ErrorCode::kTopology, why); };
  if (nodes == 0 || by_rank.size() % nodes != 0) {
    return no(std::to_string(by_rank.size()) + " model ranks are known, which are not those of " +
              std::to_string(nodes) + " nodes with the same number of ranks each");
  }
  std::vector<std::size_t> replicas(1);
  for (const std::uint32_t part : by_rank) {
    if (part >= kMaxModelRanks) {
      return no("a rank has model rank " + std::to_string(part) + "; they count from 0 to " +
                std::to_string(kMaxModelRanks - 1));
    }
    replicas.resize(std::max<std::size_t>(replicas.size(), part + 1));
    ++replicas[part];
  }
  for (std::size_t part = 1; part < replicas.size(); ++part) {
    if (replicas[part] == replicas[0]) continue;
    return no(std::to_string(replicas[part]) + " ranks have model rank " + std::to_string(part) + ", and " +
              std::to_string(replicas[0]) +
              " have model rank 0; every replica of the model needs each part of it once");
  }
  ModelRanks made;
  made.count_ = static_cast<std::uint32_t>(replicas.size());
  for (const TensorSpec& tensor : tensors) {
    if (tensor.holders.empty() || tensor.holders.back() < made.count_) continue;
    return no("tensor '" + tensor.name + "' is held by model rank " + std::to_string(tensor.holders.back()) +
              ", but ranks have model ranks from 0 to " + std::to_string(made.count_ - 1) +
              " only; start the trainers with the mesh that the model is split for");
  }
  for (std::uint32_t part = 0; part < made.count_; ++part) {
    if (std::ranges::any_of(tensors, [&](const TensorSpec& tensor) { return tensor.held_by(part); })) continue;
    return no("model rank " + std::to_string(part) + " holds no tensor; start no more ranks than the model has parts");
  }
  if (made.count_ > 1) made.by_rank_ = std::move(by_rank);
  return made;
}

std::uint32_t ModelRanks::copies(const TensorSpec& tensor) const {
  return tensor.holders.empty() ? count_ : static_cast<std::uint32_t>(tensor.holders.size());
}

std::span<const std::uint32_t> ModelRanks::of_node(NodeRank node, std::uint32_t nodes) const {
  TRIB_ASSERT(node.value < nodes);
  const std::size_t local = by_rank_.size() / nodes;
  return std::span(by_rank_).subspan(node.value * local, local);
}

std::vector<NodeRank> ModelRanks::nodes_with(const TensorSpec& tensor, std::uint32_t nodes) const {
  std::vector<NodeRank> found;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    if (whole() || tensor.held_by_any(of_node(NodeRank(node), nodes))) found.emplace_back(node);
  }
  return found;
}

NodeRank ModelRanks::first_node_with(const TensorSpec& tensor, std::uint32_t nodes) const {
  return whole() ? NodeRank(0) : NodeRank(first_with(tensor) / static_cast<std::uint32_t>(by_rank_.size() / nodes));
}

std::uint32_t ModelRanks::first_with(const TensorSpec& tensor) const {
  if (whole()) return 0;
  const auto first = std::ranges::find_if(by_rank_, [&](std::uint32_t part) { return tensor.held_by(part); });
  TRIB_ASSERT(first != by_rank_.end());
  return static_cast<std::uint32_t>(first - by_rank_.begin());
}

}  // namespace tributary

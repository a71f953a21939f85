// ModelRanks: which part of the model each rank of a view holds (docs/model-parallel.md).
//
// With pipeline or tensor parallelism several ranks hold one replica of the model together. A rank's model rank is the
// number of its part: the stage, or the slice, or the pair of both as one number. Ranks with the same model rank are
// replicas of each other. Where every rank holds the whole model all have model rank 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/result.h"

namespace tributary {

class ModelRanks {
 public:
  ModelRanks() = default;  // every rank holds the whole model
  // by_rank: the model rank of every rank of a view of so many nodes; empty: every rank holds the whole model.
  // kTopology: they are not those of all ranks; a replica lacks a part that another one has; a tensor has a holder that
  // does not exist; a rank holds nothing. The error names the flaw, but not the job.
  static Result<ModelRanks> of(std::vector<std::uint32_t> by_rank, std::uint32_t nodes,
                               std::span<const TensorSpec> tensors);

  bool whole() const { return by_rank_.empty(); }
  const std::vector<std::uint32_t>& by_rank() const { return by_rank_; }  // empty: whole()
  // Ranks of one replica that hold this tensor: their gradients are added up, and all of them count each sample.
  std::uint32_t copies(const TensorSpec& tensor) const;
  // Nodes, of so many, with a rank that holds it, ascending.
  std::vector<NodeRank> nodes_with(const TensorSpec& tensor, std::uint32_t nodes) const;
  // The first rank that holds it, which gives its initial values, and that rank's node.
  std::uint32_t first_with(const TensorSpec& tensor) const;
  NodeRank first_node_with(const TensorSpec& tensor, std::uint32_t nodes) const;
  // Model ranks of that node's ranks, by local rank; empty: whole(). nodes: of the view.
  std::span<const std::uint32_t> of_node(NodeRank node, std::uint32_t nodes) const;

 private:
  std::vector<std::uint32_t> by_rank_;
  std::uint32_t count_ = 1;  // of different model ranks: from 0 to count_ - 1
};

}  // namespace tributary

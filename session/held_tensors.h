// HeldTensors: the part of the model that a rank and its node hold (docs/model-parallel.md). A tensor has the number
// that all ranks declared it with, and another one in the node's layout, by which it lies in shared memory. Made from
// an attach reply; does not change.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "common/base/layout.h"
#include "common/base/model_ranks.h"
#include "common/base/result.h"
#include "common/wire/attach_messages.h"

namespace tributary {

class HeldTensors {
 public:
  // tensors: as declared. kMalformed: the reply's model ranks or layout cannot be.
  static Result<HeldTensors> of(const AttachReply& reply, std::uint32_t nodes, std::uint32_t local_rank,
                                std::vector<TensorSpec> tensors);

  const Layout& layout() const { return layout_; }                   // of the node
  const std::vector<std::size_t>& tensors() const { return mine_; }  // that this rank holds, numbered as there
  // Converts the number that a tensor was declared with; none: this rank does not hold it.
  std::optional<std::size_t> find(std::size_t declared) const;
  std::size_t at(std::size_t declared) const;  // REQUIRES: it does
  // In a fresh job: is this rank the first that holds the tensor? tensor: as in tensors().
  bool gives_values(std::size_t tensor) const;

 private:
  HeldTensors(Layout layout, ModelRanks ranks, std::uint32_t rank, bool fresh)
      : layout_(std::move(layout)), ranks_(std::move(ranks)), rank_(rank), fresh_(fresh) {}

  Layout layout_;
  ModelRanks ranks_;
  std::vector<std::size_t> mine_;
  std::uint32_t rank_;
  bool fresh_;
};

}  // namespace tributary

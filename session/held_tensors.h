// HeldTensors: what of the model a rank holds, and its node with it (docs/model-parallel.md). Tensors have the numbers
// that all ranks declared them with, and in the node's layout, where they lie in shared memory, those of the node's
// part. Made of an attach reply; does not change.
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
  // From the number that a tensor was declared with; none: this rank does not hold it.
  std::optional<std::size_t> find(std::size_t declared) const;
  std::size_t at(std::size_t declared) const;  // REQUIRES: it does
  // In a fresh job: is this rank the first that holds it? tensor: as in tensors().
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

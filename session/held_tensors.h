// HeldTensors: the part of the model that a rank and its node hold (docs/model-parallel.md). A tensor has the number
// that all ranks declared it with, and another one in the node's layout, by which it lies in shared memory. Made from
// an attach reply; does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/assert.h"
#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/wire/attach_messages.h"

namespace tributary {

struct HeldTensor {
  std::size_t number = 0;                        // in the node's layout
  std::uint64_t offset = 0, elements = 0;        // of floats, in the node's flat space
  std::uint32_t first_chunk = 0, end_chunk = 0;  // that overlap it
  std::vector<std::uint16_t> lanes;              // of the worker, with these chunks
  bool gives_values = false;                     // in a fresh job: this rank is the first that holds it
};

class HeldTensors {
 public:
  // tensors: as declared. kMalformed: the reply's model ranks or layout cannot be.
  static Result<HeldTensors> of(const AttachReply& reply, std::uint32_t nodes, std::uint32_t local_rank,
                                std::vector<TensorSpec> tensors);

  const Layout& layout() const { return layout_; }  // of the node
  // This rank's tensors, in the layout's order.
  std::span<const HeldTensor> all() const { return mine_; }
  // By the number that a tensor was declared with. Null: this rank does not hold it.
  const HeldTensor* find(std::size_t declared) const {
    return declared < places_.size() && places_[declared] != kNone ? &mine_[places_[declared]] : nullptr;
  }
  const HeldTensor& at(std::size_t declared) const {  // REQUIRES: it does
    const HeldTensor* const tensor = find(declared);
    TRIB_ASSERT(tensor);
    return *tensor;
  }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  HeldTensors(Layout layout, std::size_t declared) : layout_(std::move(layout)), places_(declared, kNone) {}

  Layout layout_;
  std::vector<HeldTensor> mine_;
  std::vector<std::uint32_t> places_;  // by declared number: in mine_
};

}  // namespace tributary

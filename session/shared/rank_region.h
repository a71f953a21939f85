// The used parts of a rank's region of shared memory (session/shared/attach_region.h): its words, and the gradients of tensors
// that it holds. The rest is addresses without memory, so that a rank with a part of the model needs memory only for
// that part.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/layout.h"

namespace tributary {

struct RegionPart {
  std::size_t begin = 0, end = 0;  // bytes of the region
  std::size_t bytes() const { return end - begin; }
  bool operator==(const RegionPart&) const = default;
};

// Whole pages but for the region's end, ascending, with a page or more between two. held: numbers of tensors in the
// node's layout, ascending.
std::vector<RegionPart> rank_region_parts(const Layout& layout, std::span<const std::size_t> held);

}  // namespace tributary

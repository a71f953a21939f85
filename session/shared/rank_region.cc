#include "session/shared/rank_region.h"

#include <unistd.h>

#include <algorithm>

#include "session/shared/attach_region.h"

namespace tributary {

std::vector<RegionPart> rank_region_parts(const Layout& layout, std::span<const std::size_t> held) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t gradients = rank_gradients_offset(layout.tensors().size());
  const std::size_t size = gradients + layout.flat_elements() * sizeof(float);
  const auto whole_pages = [page, size](std::size_t begin, std::size_t end) {
    return RegionPart{begin / page * page, std::min((end + page - 1) / page * page, size)};
  };
  std::vector<RegionPart> parts{whole_pages(0, gradients)};
  for (const std::size_t tensor : held) {
    const std::size_t begin = gradients + layout.tensor_offset(tensor) * sizeof(float);
    const RegionPart part = whole_pages(begin, begin + layout.tensors()[tensor].elements() * sizeof(float));
    if (part.begin <= parts.back().end) {
      parts.back().end = std::max(parts.back().end, part.end);
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

}  // namespace tributary

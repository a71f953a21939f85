// DevicePlan: which chunk, rank and device belong together in one job on this node (docs/gpu-nodes.md).
//
// "Position" is a device's place among the job's devices: its NCCL rank, and which chunk of each group is its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/layout.h"
#include "common/math/encoding.h"
#include "worker/device/device_api.h"

namespace tributary {

// "chunk 7", "chunks 4 to 7"
inline std::string chunks_in_words(ChunkIndex first, std::uint32_t count) {
  const std::string from = std::to_string(first.value);
  return count == 1 ? "chunk " + from : "chunks " + from + " to " + std::to_string(first.value + count - 1);
}

struct DevicePlan {
  std::shared_ptr<const Layout> layout;
  std::shared_ptr<const Encoding> push, pull;
  std::vector<DeviceIndex> devices;             // by position
  std::vector<std::uint32_t> position_of_rank;  // by local rank
  bool always_collectives = false;              // also with one device

  std::uint32_t width() const { return static_cast<std::uint32_t>(devices.size()); }
  bool collectives() const { return width() > 1 || always_collectives; }
  std::size_t chunk_elements() const { return layout->chunk_elements(); }
  std::size_t group_elements() const { return width() * chunk_elements(); }
  std::uint32_t groups() const { return (static_cast<std::uint32_t>(layout->chunks()) + width() - 1) / width(); }
  // Elements of an array on a device: whole groups.
  std::size_t padded_elements() const { return groups() * group_elements(); }

  std::uint32_t group_of(ChunkIndex chunk) const { return chunk.value / width(); }
  std::uint32_t position_of(ChunkIndex chunk) const { return chunk.value % width(); }
  ChunkIndex chunk_at(std::uint32_t group, std::uint32_t position) const {
    return ChunkIndex(group * width() + position);
  }
  bool exists(ChunkIndex chunk) const { return chunk.value < layout->chunks(); }
  std::uint32_t chunks_in(std::uint32_t group) const {
    return std::min(width(), static_cast<std::uint32_t>(layout->chunks()) - group * width());
  }
  std::size_t elements(ChunkIndex chunk) const { return layout->chunk(chunk).elements; }

  std::vector<std::uint32_t> ranks_on(std::uint32_t position) const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < position_of_rank.size(); ++rank) {
      if (position_of_rank[rank] == position) ranks.push_back(rank);
    }
    return ranks;
  }
  // "device 1 (cuda:1 NVIDIA H200, GPU-..., local ranks 2, 3)"
  std::string describe(const DeviceApi& api, std::uint32_t position) const {
    const DeviceInfo& info = api.devices()[devices[position].value];
    const std::vector<std::uint32_t> ranks = ranks_on(position);
    std::string text = "device " + std::to_string(position) + " (" + info.name + ", " + info.uuid + ", local rank";
    if (ranks.size() > 1) text += 's';
    for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
    return text + ")";
  }
};

}  // namespace tributary

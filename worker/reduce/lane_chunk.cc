#include "worker/reduce/lane_chunk.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/assert.h"

namespace tributary {

std::size_t LaneChunks::count(const Layout& layout, std::uint16_t index, std::uint16_t lanes) {
  return static_cast<std::size_t>(
      std::ranges::count_if(layout.owners(), [&](ChunkOwner owner) { return owner.worker_lane(lanes) == index; }));
}

LaneChunks::LaneChunks(std::shared_ptr<const Layout> layout, Round start, std::uint16_t index, std::uint16_t lanes)
    : layout_(std::move(layout)), start_(start), places_(layout_->chunks(), kNone) {
  chunks_.reserve(count(*layout_, index, lanes));
  std::map<std::pair<std::uint16_t, std::uint16_t>, ConnectionIndex> known;
  for (std::uint32_t c = 0; c < layout_->chunks(); ++c) {
    const ChunkIndex number(c);
    const ChunkOwner owner = layout_->owner(number);
    if (owner.worker_lane(lanes) != index) continue;
    const auto [connection, added] = known.try_emplace({owner.shard.value, owner.lane.value},
                                                       ConnectionIndex(static_cast<std::uint16_t>(servers_.size())));
    if (added) servers_.push_back(owner);
    LaneChunk& chunk = chunks_.emplace_back();
    chunk.index = number;
    chunk.whole = layout_->in_whole(number);
    chunk.place = static_cast<std::uint32_t>(chunks_.size() - 1);
    chunk.connection = connection->second;
    chunk.range = layout_->chunk(number);
    chunk.gradient.round = start;
    places_[c] = chunk.place;
  }
}

const LaneChunk& LaneChunks::at(ChunkIndex index) const {
  const LaneChunk* const chunk = find(index);
  TRIB_ASSERT(chunk != nullptr);
  return *chunk;
}

}  // namespace tributary

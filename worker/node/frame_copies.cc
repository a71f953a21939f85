#include "worker/node/frame_copies.h"

#include <cstring>

#include "common/base/assert.h"
#include "common/wire/messages.h"

namespace tributary {

FrameCopies::FrameCopies(const Layout& layout, const std::vector<ChunkIndex>& chunks, EncodingSpec push)
    : places_(layout.chunks()) {
  const auto encoding = make_encoding(push);
  for (const ChunkIndex chunk : chunks) {
    const std::size_t elements = layout.chunk(chunk).elements;
    Place& place = places_[chunk.value];
    place.offset = bytes_;
    place.residual = residual_offset(encoding->bytes(elements));  // a multiple of a cache line
    place.bytes = place.residual + (encoding->keeps_residual() ? elements * sizeof(float) : 0);
    bytes_ += residual_offset(place.bytes);
  }
}

Status FrameCopies::allocate() {
  auto memory =
      SharedMemory::create(bytes_, "frames of devices for servers on this machine", SharedMemory::Peers::kRead);
  if (!memory) return tl::unexpected(memory.error());
  memory_ = std::move(*memory);
  return {};
}

std::span<const std::byte> FrameCopies::copy(ChunkIndex chunk, std::span<const std::byte> payload, bool alone) {
  const Place& place = places_[chunk.value];
  const std::size_t begin = alone ? place.residual : 0;
  TRIB_ASSERT(begin + payload.size() <= place.bytes);
  std::byte* to = memory_.data() + place.offset + begin;
  std::memcpy(to, payload.data(), payload.size());
  return {to, payload.size()};
}

}  // namespace tributary

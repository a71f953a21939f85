#include "worker/host_reducer.h"

#include <algorithm>

#include "common/assert.h"
#include "common/clock.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

// Values at a time: the sum of a block (8 KiB) is encoded while it is in the L1 cache.
constexpr std::size_t kBlock = 2048;
constexpr std::size_t kFrameAlign = 64;
constexpr std::uint32_t kNone = ~0u;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kFrameAlign - 1) / kFrameAlign * kFrameAlign;
}

bool lends_memory(std::size_t ranks, EncodingId encoding) {
  return ranks == 1 && encoding == EncodingId::kFp32;
}

}  // namespace

HostReducer::HostReducer(std::shared_ptr<const Layout> layout, const std::vector<ChunkIndex>& chunks,
                         std::vector<const float*> gradients, EncodingId encoding, ReduceListener& listener)
    : layout_(std::move(layout)),
      gradients_(std::move(gradients)),
      encoding_(encoding_for(encoding)),
      listener_(listener),
      local_(layout_->chunks(), kNone),
      offsets_(chunks.size()),
      lent_(chunks.size()),
      inputs_(gradients_.size()) {
  TRIB_ASSERT(!gradients_.empty() && gradients_.size() <= kernels::kMaxSumInputs);
  const bool own = !lends_memory(gradients_.size(), encoding);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    local_[chunks[i].value] = static_cast<std::uint32_t>(i);
    offsets_[i] = frame_bytes_;
    if (own) frame_bytes_ += aligned(encoding_.bytes(layout_->chunk(chunks[i]).elements));
  }
  // Not zeroed: pages are touched when a chunk is first reduced.
  if (own) frames_ = std::make_unique_for_overwrite<std::byte[]>(frame_bytes_ + kFrameAlign);
}

std::uint64_t HostReducer::frame_bytes_for(const Layout& layout, std::uint32_t ranks, EncodingId encoding) {
  if (lends_memory(ranks, encoding)) return 0;
  return encoding_for(encoding).bytes(layout.flat_elements()) + layout.chunks() * kFrameAlign;
}

void HostReducer::reduce(ChunkIndex chunk, Round round, std::uint64_t weight) {
  const std::uint32_t position = local_[chunk.value];
  TRIB_ASSERT(position != kNone && !lent_[position]);
  lent_[position] = true;
  const ChunkRange range = layout_->chunk(chunk);
  if (lends()) {
    const auto* bytes = reinterpret_cast<const std::byte*>(gradients_[0] + range.begin);
    listener_.reduced(chunk, round, weight, {bytes, range.elements * sizeof(float)});
    return;
  }
  const std::uint64_t started = steady_ns();
  const auto frame = encode_sum(position, range);
  busy_ns_ += steady_ns() - started;
  listener_.reduced(chunk, round, weight, frame);
}

std::span<const std::byte> HostReducer::encode_sum(std::uint32_t position, ChunkRange range) {
  const auto base = reinterpret_cast<std::uintptr_t>(frames_.get());
  std::byte* frame = frames_.get() + (aligned(base) - base) + offsets_[position];
  const auto sum_block = [&](std::size_t first, std::size_t count, float* out) {
    for (std::size_t rank = 0; rank < gradients_.size(); ++rank) inputs_[rank] = gradients_[rank] + range.begin + first;
    kernels::tree_sum(inputs_, count, out);
  };
  alignas(kFrameAlign) float sum[kBlock];
  for (std::size_t first = 0; first < range.elements; first += kBlock) {
    const std::size_t count = std::min<std::size_t>(kBlock, range.elements - first);
    if (encoding_.id() == EncodingId::kFp32) {
      sum_block(first, count,
                reinterpret_cast<float*>(frame) + first);  // straight into the frame: aligned, nothing to encode
    } else if (gradients_.size() == 1) {
      encoding_.encode(gradients_[0] + range.begin + first, range.elements, first, count, frame);
    } else {
      sum_block(first, count, sum);
      encoding_.encode(sum, range.elements, first, count, frame);
    }
  }
  return {frame, encoding_.bytes(range.elements)};
}

void HostReducer::release(ChunkIndex chunk) {
  const std::uint32_t position = local_[chunk.value];
  TRIB_ASSERT(position != kNone && lent_[position]);
  lent_[position] = false;
}

}  // namespace tributary

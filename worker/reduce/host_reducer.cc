#include "worker/reduce/host_reducer.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/round_up.h"
#include "kernels/stream_copy.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

// Values at a time: the sum of a block (8 KiB, 16 with 1-bit signs) is encoded while it is in the L1 cache.
constexpr std::size_t kBlock = 2048;
constexpr std::size_t kFrameAlign = 64;
constexpr std::uint32_t kNoPlace = ~0u;

// One frame of a chunk, with its residual if it has one.
std::size_t frame_size(const Encoding& push, std::size_t elements) {
  const std::size_t frame = push.bytes(elements);
  return push.keeps_residual() ? round_up(residual_offset(frame) + elements * sizeof(float), kFrameAlign)
                               : round_up(frame, kFrameAlign);
}

std::size_t place_size(const Encoding& push, std::size_t elements) {
  return (push.keeps_residual() ? 2 : 1) * frame_size(push, elements);
}

}  // namespace

HostReducer::HostReducer(std::shared_ptr<const Layout> layout, const std::vector<ChunkIndex>& chunks,
                         std::vector<const float*> gradients, float* parameters, EncodingSpec push, EncodingSpec pull,
                         ReduceListener& listener, std::shared_ptr<RedoRing> ring, Round start,
                         std::span<const std::uint32_t> model_ranks)
    : layout_(std::move(layout)),
      gradients_(std::move(gradients)),
      model_ranks_(model_ranks.begin(), model_ranks.end()),
      parameters_(parameters),
      push_(make_encoding(push)),
      pull_(make_encoding(pull)),
      listener_(listener),
      ring_(std::move(ring)),
      local_(layout_->chunks(), kNoPlace),
      places_(chunks.size()),
      sum_(std::max(kBlock, push_->granularity())) {
  TRIB_ASSERT(!gradients_.empty() && gradients_.size() <= kernels::kMaxSumInputs);
  TRIB_ASSERT(model_ranks_.empty() || model_ranks_.size() == gradients_.size());
  TRIB_ASSERT(!written_in_ring() || (ring_ && sends_gradients(gradients_.size(), push)));
  const bool own = !ring_ && !sends_gradients(gradients_.size(), push);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::size_t elements = layout_->chunk(chunks[i]).elements;
    local_[chunks[i].value] = static_cast<std::uint32_t>(i);
    places_[i].offset = frame_bytes_;
    places_[i].round = start;
    if (ring_ && push_->keeps_residual() && !ring_->has_residual(chunks[i], start)) {
      std::fill_n(residual_after(chunks[i], start), elements, 0.0f);  // nothing, unless the servers have it
      ring_->publish_residual(chunks[i], start);
    }
    if (own) frame_bytes_ += place_size(*push_, elements);
    scratch_.resize(std::max(scratch_.size(), push_->scratch_words(elements)));
  }
  if (!own || frame_bytes_ == 0) return;
  // Zeroed, as residuals begin.
  auto frames = SharedMemory::create(frame_bytes_, "the frames of pushes", SharedMemory::Peers::kRead);
  if (!frames) throw std::bad_alloc();
  frames_ = std::move(*frames);
}

std::uint64_t HostReducer::frame_bytes_for(const Layout& layout, std::uint32_t ranks, EncodingSpec push) {
  if (sends_gradients(ranks, push)) return 0;
  const auto encoding = make_encoding(push);
  std::uint64_t bytes = 0;
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    bytes += place_size(*encoding, layout.chunk(ChunkIndex(c)).elements);
  }
  return bytes;
}

std::vector<const SharedMemory*> HostReducer::frames() const {
  if (ring_) return {&ring_->memory()};
  if (frames_) return {&frames_};
  return {};
}

HostReducer::Place& HostReducer::place_of(ChunkIndex chunk) {
  TRIB_ASSERT(chunk.value < local_.size() && local_[chunk.value] != kNoPlace);
  return places_[local_[chunk.value]];
}

// Returns the area of that round's frame and of the residual after it.
std::byte* HostReducer::area(ChunkIndex chunk, Round round) {
  if (ring_ && push_->keeps_residual()) return ring_->area(chunk, round);
  const std::size_t turn = push_->keeps_residual() ? round.value % 2 : 0;
  return frames_.data() + place_of(chunk).offset + turn * frame_size(*push_, layout_->chunk(chunk).elements);
}

float* HostReducer::residual_after(ChunkIndex chunk, Round round) {
  const std::size_t frame_bytes = push_->bytes(layout_->chunk(chunk).elements);
  return reinterpret_cast<float*>(area(chunk, round) + residual_offset(frame_bytes));
}

void HostReducer::reduce(ChunkIndex chunk, Round round, std::uint64_t weight, bool with_residual) {
  Place& place = place_of(chunk);
  TRIB_ASSERT(!place.lent && (!with_residual || push_->keeps_residual()));
  place.lent = true;
  const ChunkRange range = layout_->chunk(chunk);
  if (written_in_ring()) {
    ring_->publish(chunk, round, weight);
    listener_.reduced(chunk, round, weight, ring_->written(chunk, round));
    return;
  }
  const std::uint64_t started = steady_ns();
  if (lends_gradients()) {
    const std::span bytes = std::as_bytes(std::span(gradients_[0] + range.begin, range.elements));
    if (ring_) {  // only in case a server is lost: what is sent is the trainer's memory
      kernels::stream_copy(bytes.data(), bytes.size(), ring_->frame(chunk, round));
      ring_->publish(chunk, round, weight);
      busy_ns_ += steady_ns() - started;
    }
    listener_.reduced(chunk, round, weight, bytes);
    return;
  }
  std::byte* out = ring_ ? ring_->frame(chunk, round) : area(chunk, round);
  place.round = round;
  encode_sum(chunk, round, weight, out);
  if (ring_) ring_->publish(chunk, round, weight);
  const std::size_t frame_bytes = push_->bytes(range.elements);
  if (ring_ && with_residual) {
    std::memcpy(area(chunk, round), out, frame_bytes);
    out = area(chunk, round);
  }
  busy_ns_ += steady_ns() - started;
  const std::size_t bytes = with_residual ? residual_offset(frame_bytes) + range.elements * sizeof(float) : frame_bytes;
  listener_.reduced(chunk, round, weight, {out, bytes});
}

void HostReducer::find_holders(ChunkIndex chunk) {
  const TensorSpec& tensor = layout_->tensors()[layout_->tensors_of(chunk).first];
  holders_.clear();
  for (std::size_t rank = 0; rank < gradients_.size(); ++rank) {
    if (tensor.held_at(model_ranks_, rank)) holders_.push_back(gradients_[rank]);
  }
  inputs_.resize(holders_.size());
}

void HostReducer::encode_sum(ChunkIndex chunk, Round round, std::uint64_t weight, std::byte* out) {
  const ChunkRange range = layout_->chunk(chunk);
  const float* before = nullptr;
  float* residual = nullptr;
  if (push_->keeps_residual()) {
    before = residual_after(chunk, Round(round.value - 1));
    residual = residual_after(chunk, round);
    if (ring_) ring_->begin_residual(chunk, round);
  }
  find_holders(chunk);
  const bool in_place = push_->id() == EncodingId::kFp32;  // nothing to encode: summed straight into the frame
  const float scale = push_->push_scale(weight);
  for (std::size_t first = 0; first < range.elements; first += sum_.size()) {
    const std::size_t count = std::min<std::size_t>(sum_.size(), range.elements - first);
    const float* values = holders_[0] + range.begin + first;
    if (holders_.size() > 1 || in_place || scale != 1.0f) {
      for (std::size_t i = 0; i < holders_.size(); ++i) inputs_[i] = holders_[i] + range.begin + first;
      float* sum = in_place ? reinterpret_cast<float*>(out) + first : sum_.data();
      kernels::tree_sum(inputs_, count, sum);
      values = sum;
    }
    if (in_place) continue;
    if (scale != 1.0f) kernels::scale(sum_.data(), count, scale);
    if (residual != nullptr) std::copy_n(before + first, count, residual + first);
    push_->encode(values, range.elements, first, count, residual, out);
  }
  push_->finish(range.elements, residual, out, scratch_);
  if (ring_ && residual) ring_->publish_residual(chunk, round);
}

void HostReducer::deliver(ChunkIndex chunk, Version version, bool full, std::span<const std::byte> payload) {
  const ChunkRange range = layout_->chunk(chunk);
  float* parameters = parameters_ + range.begin;
  if (full) {
    std::memcpy(parameters, payload.data(), range.elements * sizeof(float));
  } else {
    pull_->apply(payload.data(), range.elements, parameters);
  }
  listener_.delivered(chunk, version);
}

void HostReducer::release(ChunkIndex chunk) {
  Place& place = place_of(chunk);
  TRIB_ASSERT(place.lent);
  place.lent = false;
}

void HostReducer::restore_residual(ChunkIndex chunk, std::span<const std::byte> values) {
  const Place& place = place_of(chunk);
  TRIB_ASSERT(push_->keeps_residual() && !place.lent &&
              values.size() == layout_->chunk(chunk).elements * sizeof(float));
  if (ring_) ring_->begin_residual(chunk, place.round);
  std::memcpy(residual_after(chunk, place.round), values.data(), values.size());
  if (ring_) ring_->publish_residual(chunk, place.round);
}

std::span<const std::byte> HostReducer::residual(ChunkIndex chunk) {
  TRIB_ASSERT(push_->keeps_residual());
  const Place& place = place_of(chunk);
  // A round that is still open will not be completed any more: what counts is the residual before it.
  const Round round(place.round.value - (place.lent ? 1 : 0));
  return std::as_bytes(std::span(residual_after(chunk, round), layout_->chunk(chunk).elements));
}

}  // namespace tributary

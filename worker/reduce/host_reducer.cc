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

HostReducer::HostReducer(const LaneChunks& chunks, std::vector<const float*> gradients, float* parameters,
                         EncodingSpec push, EncodingSpec pull, ReduceListener& listener, std::shared_ptr<RedoRing> ring,
                         std::span<const std::uint32_t> model_ranks)
    : layout_(chunks.layout()),
      gradients_(std::move(gradients)),
      model_ranks_(model_ranks.begin(), model_ranks.end()),
      parameters_(parameters),
      push_(make_encoding(push)),
      pull_(make_encoding(pull)),
      listener_(listener),
      ring_(std::move(ring)),
      sum_(std::max(kBlock, push_->granularity())) {
  TRIB_ASSERT(!gradients_.empty() && gradients_.size() <= kernels::kMaxSumInputs);
  TRIB_ASSERT(model_ranks_.empty() || model_ranks_.size() == gradients_.size());
  TRIB_ASSERT(!written_in_ring() || (ring_ && sends_gradients(gradients_.size(), push)));
  const bool own = !ring_ && !sends_gradients(gradients_.size(), push);
  const Round start = chunks.start();
  for (const LaneChunk& chunk : chunks) {
    const std::size_t elements = chunk.range.elements;
    frame_at_.push_back(frame_bytes_);
    if (ring_ && push_->keeps_residual() && !ring_->has_residual(chunk.index, start)) {
      std::fill_n(residual_after(chunk, start), elements, 0.0f);  // nothing, unless the servers have it
      ring_->publish_residual(chunk.index, start);
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

// Returns the area of that round's frame and of the residual after it.
std::byte* HostReducer::area(const LaneChunk& chunk, Round round) const {
  if (ring_ && push_->keeps_residual()) return ring_->area(chunk.index, round);
  const std::size_t turn = push_->keeps_residual() ? round.value % 2 : 0;
  return frames_.data() + frame_at_[chunk.place] + turn * frame_size(*push_, chunk.range.elements);
}

float* HostReducer::residual_after(const LaneChunk& chunk, Round round) const {
  return reinterpret_cast<float*>(area(chunk, round) + residual_offset(push_->bytes(chunk.range.elements)));
}

void HostReducer::reduce(LaneChunk& chunk, bool with_residual) {
  LaneChunk::Gradient& gradient = chunk.gradient;
  TRIB_ASSERT(gradient.frame.empty() && (!with_residual || push_->keeps_residual()));
  if (written_in_ring()) {
    ring_->publish(chunk.index, gradient.round, gradient.weight, gradient.settings);
    gradient.frame = ring_->written(chunk.index, gradient.round);
    return listener_.reduced(chunk);
  }
  const std::uint64_t started = steady_ns();
  if (lends_gradients()) {
    gradient.frame = std::as_bytes(std::span(gradients_[0] + chunk.range.begin, chunk.range.elements));
    if (ring_) {  // only in case a server is lost: what is sent is the trainer's memory
      kernels::stream_copy(gradient.frame.data(), gradient.frame.size(), ring_->frame(chunk.index, gradient.round));
      ring_->publish(chunk.index, gradient.round, gradient.weight, gradient.settings);
      busy_ns_ += steady_ns() - started;
    }
    return listener_.reduced(chunk);
  }
  std::byte* out = ring_ ? ring_->frame(chunk.index, gradient.round) : area(chunk, gradient.round);
  encode_sum(chunk, out);
  if (ring_) ring_->publish(chunk.index, gradient.round, gradient.weight, gradient.settings);
  const std::size_t frame_bytes = push_->bytes(chunk.range.elements);
  if (ring_ && with_residual) {
    std::memcpy(area(chunk, gradient.round), out, frame_bytes);
    out = area(chunk, gradient.round);
  }
  busy_ns_ += steady_ns() - started;
  gradient.frame = {out,
                    with_residual ? residual_offset(frame_bytes) + chunk.range.elements * sizeof(float) : frame_bytes};
  listener_.reduced(chunk);
}

void HostReducer::find_holders(const LaneChunk& chunk) {
  const TensorSpec& tensor = layout_.tensors()[layout_.tensors_of(chunk.index).first];
  holders_.clear();
  for (std::size_t rank = 0; rank < gradients_.size(); ++rank) {
    if (tensor.held_at(model_ranks_, rank)) holders_.push_back(gradients_[rank]);
  }
  inputs_.resize(holders_.size());
}

void HostReducer::encode_sum(const LaneChunk& chunk, std::byte* out) {
  const Round round = chunk.gradient.round;
  const ChunkRange range = chunk.range;
  const float* before = nullptr;
  float* residual = nullptr;
  if (push_->keeps_residual()) {
    before = residual_after(chunk, Round(round.value - 1));
    residual = residual_after(chunk, round);
    if (ring_) ring_->begin_residual(chunk.index, round);
  }
  find_holders(chunk);
  const bool in_place = push_->id() == EncodingId::kFp32;  // nothing to encode: summed straight into the frame
  const float scale = push_->push_scale(chunk.gradient.weight);
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
  if (ring_ && residual) ring_->publish_residual(chunk.index, round);
}

void HostReducer::deliver(LaneChunk& chunk, Version version, bool full, std::span<const std::byte> payload) {
  float* parameters = parameters_ + chunk.range.begin;
  if (full) {
    std::memcpy(parameters, payload.data(), chunk.range.elements * sizeof(float));
  } else {
    pull_->apply(payload.data(), chunk.range.elements, parameters);
  }
  listener_.delivered(chunk, version);
}

void HostReducer::release(LaneChunk& chunk) {
  TRIB_ASSERT(!chunk.gradient.frame.empty());
  chunk.gradient.frame = {};
}

void HostReducer::restore_residual(LaneChunk& chunk, std::span<const std::byte> values) {
  const Round round = chunk.gradient.round;
  TRIB_ASSERT(push_->keeps_residual() && chunk.gradient.frame.empty() &&
              values.size() == chunk.range.elements * sizeof(float));
  if (ring_) ring_->begin_residual(chunk.index, round);
  std::memcpy(residual_after(chunk, round), values.data(), values.size());
  if (ring_) ring_->publish_residual(chunk.index, round);
}

std::span<const std::byte> HostReducer::residual(const LaneChunk& chunk) {
  TRIB_ASSERT(push_->keeps_residual());
  // A round that is still open will not be completed any more: what counts is the residual before it.
  const Round round(chunk.gradient.round.value - (chunk.gradient.frame.empty() ? 0 : 1));
  return std::as_bytes(std::span(residual_after(chunk, round), chunk.range.elements));
}

}  // namespace tributary

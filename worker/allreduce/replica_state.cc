#include "worker/allreduce/replica_state.h"

#include <algorithm>
#include <new>

#include "common/math/fused_step.h"

namespace tributary {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStagger = 5 * 64;  // bytes between the places of arrays within a page

}  // namespace

FloatArray::FloatArray(std::uint64_t elements, std::size_t place) {
  const std::size_t offset = place * kStagger % kPage;
  const std::size_t bytes = (elements * sizeof(float) + offset + kPage - 1) / kPage * kPage;
  memory_.reset(std::aligned_alloc(kPage, bytes));
  if (!memory_) throw std::bad_alloc();
  data_ = reinterpret_cast<float*>(static_cast<std::byte*>(memory_.get()) + offset);
}

ReplicaState::ReplicaState(std::shared_ptr<const JobPlan> plan, std::shared_ptr<const Layout> layout, float* parameters)
    : plan_(std::move(plan)),
      layout_(std::move(layout)),
      fp32_(make_encoding(EncodingId::kFp32)),
      parameters_(parameters),
      steps_(layout_->chunks(), 0) {
  const kernels::Optimizer& optimizer = *plan_->optimizer;
  for (int slot = 0; slot < optimizer.slots(); ++slot) {
    arrays_.emplace_back(layout_->flat_elements(), static_cast<std::size_t>(slot) + 1);
    slots_.push_back(arrays_.back().data());
    std::fill_n(slots_.back(), layout_->flat_elements(), optimizer.initial_state(slot));
  }
}

void ReplicaState::step(ChunkIndex chunk, const float* sum, std::uint64_t weight, SaidSettings said) {
  if (weight == 0) return;
  const ChunkRange range = layout_->chunk(chunk);
  const PushFrame frame{reinterpret_cast<const std::byte*>(sum)};
  FusedArgs args;
  args.elements = range.elements;
  args.frames = {&frame, 1};
  args.push = fp32_.get();
  args.scale = static_cast<float>(1.0 / static_cast<double>(weight));
  args.param_in = args.param_out = parameters_ + range.begin;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    args.state_in[slot] = args.state_out[slot] = slots_[slot] + range.begin;
  }
  const std::uint64_t step = ++steps_[chunk.value];
  StepRuns runs;  // of this call: several threads step chunks
  fused_step(*plan_->optimizer, runs.of(*plan_, *layout_, chunk, step, step, said), args);
}

}  // namespace tributary

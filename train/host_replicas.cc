#include "train/host_replicas.h"

#include <algorithm>
#include <utility>

#include "common/base/assert.h"
#include "common/base/layout.h"

namespace tributary::train {

HostReplicas::HostReplicas(const MlpShape& shape, std::shared_ptr<const kernels::Optimizer> inner,
                           std::uint32_t replicas, bool keeps)
    : tensors_(shape.tensors()), inner_(std::move(inner)) {
  std::size_t elements = 0;
  for (const TensorSpec& tensor : tensors_) {
    offsets_.push_back(elements);
    elements += (tensor.elements() + kTensorAlign - 1) / kTensorAlign * kTensorAlign;
  }
  flat_ = AlignedFloats(elements);
  for (const std::size_t offset : offsets_) parameters_.push_back(flat_.data() + offset);
  states_.resize(replicas);
  for (State& state : states_) {
    state.banks.resize(keeps ? 2 : 1);
    for (std::vector<AlignedFloats>& slots : state.banks) {
      for (int slot = 0; slot < inner_->slots(); ++slot) slots.emplace_back(elements);
    }
  }
}

void HostReplicas::begin(std::uint32_t replica, InnerState begins) {
  replica_ = replica;
  State& state = states_[replica];
  const bool keeps = state.banks.size() == 2;
  TRIB_ASSERT(keeps || begins == InnerState::kFresh);
  if (keeps) {
    state.in = begins == InnerState::kNext ? state.last : 1 - state.last;
    state.out = 1 - state.in;
  }
  if (begins != InnerState::kFresh) return;
  int slot = 0;
  for (AlignedFloats& values : state.banks[state.in]) {
    std::ranges::fill(values.span(), inner_->initial_state(slot++));
  }
}

void HostReplicas::step(std::size_t tensor, const kernels::StepScalars& scalars, const float* from,
                        const float* gradient, std::uint32_t samples) {
  const std::size_t offset = offsets_[tensor];
  float* own = flat_.data() + offset;
  kernels::BlockArgs args;
  args.count = tensors_[tensor].elements();
  args.grad = gradient;
  args.grad_scale = static_cast<float>(1.0 / samples);
  args.param_in = from;
  args.param_out = own;
  State& state = states_[replica_];
  auto& read = state.banks[from != own ? state.in : state.out];
  auto& written = state.banks[state.out];
  for (std::size_t slot = 0; slot < written.size(); ++slot) {
    args.state_in[slot] = read[slot].data() + offset;
    args.state_out[slot] = written[slot].data() + offset;
  }
  inner_->step(scalars, args);
}

void HostReplicas::subtract(std::size_t tensor, const float* from, float* difference) const {
  const float* own = parameters_[tensor];
  const std::size_t count = tensors_[tensor].elements();
  for (std::size_t i = 0; i < count; ++i) difference[i] = from[i] - own[i];
}

}  // namespace tributary::train

#include "train/host_replicas.h"

#include <algorithm>
#include <utility>

#include "common/layout.h"

namespace tributary::train {

HostReplicas::HostReplicas(const MlpShape& shape, std::shared_ptr<const kernels::Optimizer> inner,
                           std::uint32_t replicas)
    : tensors_(shape.tensors()), inner_(std::move(inner)) {
  std::size_t elements = 0;
  for (const TensorSpec& tensor : tensors_) {
    offsets_.push_back(elements);
    elements += (tensor.elements() + kTensorAlign - 1) / kTensorAlign * kTensorAlign;
  }
  flat_ = AlignedFloats(elements);
  for (const std::size_t offset : offsets_) parameters_.push_back(flat_.data() + offset);
  states_.resize(replicas);
  for (std::vector<AlignedFloats>& slots : states_) {
    for (int slot = 0; slot < inner_->slots(); ++slot) slots.emplace_back(elements);
  }
}

void HostReplicas::reset(std::uint32_t replica) {
  int slot = 0;
  for (AlignedFloats& state : states_[replica]) std::ranges::fill(state.span(), inner_->initial_state(slot++));
}

void HostReplicas::step(std::uint32_t replica, std::size_t tensor, const kernels::StepScalars& scalars,
                        const float* from, const float* gradient, std::uint32_t samples) {
  kernels::BlockArgs args;
  args.count = tensors_[tensor].elements();
  args.grad = gradient;
  args.grad_scale = static_cast<float>(1.0 / samples);
  args.param_in = from;
  args.param_out = flat_.data() + offsets_[tensor];
  int slot = 0;
  for (AlignedFloats& state : states_[replica]) {
    args.state_in[slot] = args.state_out[slot] = state.data() + offsets_[tensor];
    ++slot;
  }
  inner_->step(scalars, args);
}

void HostReplicas::subtract(std::size_t tensor, const float* from, float* difference) const {
  const float* own = parameters_[tensor];
  const std::size_t count = tensors_[tensor].elements();
  for (std::size_t i = 0; i < count; ++i) difference[i] = from[i] - own[i];
}

}  // namespace tributary::train

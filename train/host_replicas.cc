#include "train/host_replicas.h"

#include <algorithm>
#include <utility>

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
  banks_.assign(replicas, StateBanks(keeps));
  states_.resize(replicas);
  for (auto& banks : states_) {
    banks.resize(keeps ? 2 : 1);
    for (std::vector<AlignedFloats>& slots : banks) {
      for (int slot = 0; slot < inner_->slots(); ++slot) slots.emplace_back(elements);
    }
  }
}

void HostReplicas::begin(std::uint32_t replica, InnerState state) {
  replica_ = replica;
  banks_[replica].begin(state);
  if (state != InnerState::kFresh) return;
  int slot = 0;
  for (AlignedFloats& values : states_[replica][banks_[replica].in()]) {
    std::ranges::fill(values.span(), inner_->initial_state(slot++));
  }
}

void HostReplicas::step(std::size_t tensor, const kernels::StepScalars& scalars, const float* from,
                        const float* gradient, std::uint32_t samples) {
  const kernels::BlockArgs args =
      local_step(banks_[replica_], states_[replica_], offsets_[tensor], tensors_[tensor].elements(), from,
                 flat_.data() + offsets_[tensor], gradient, samples);
  inner_->step(scalars, args);
}

void HostReplicas::subtract(std::size_t tensor, const float* from, float* difference) const {
  const float* own = parameters_[tensor];
  const std::size_t count = tensors_[tensor].elements();
  for (std::size_t i = 0; i < count; ++i) difference[i] = from[i] - own[i];
}

}  // namespace tributary::train

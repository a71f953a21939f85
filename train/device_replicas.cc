#include "train/device_replicas.h"

#include <string>

#include "kernels/cuda_optimizer.h"
#include "train/mlp_kernels.h"

namespace tributary::train {

namespace {

constexpr std::size_t kReplicaAlign = 64;  // 256 bytes, as cudaMalloc aligns

}  // namespace

Result<std::unique_ptr<DeviceReplicas>> DeviceReplicas::make(const MlpShape& shape, const CudaDeviceName& device,
                                                             cudaStream_t stream,
                                                             std::shared_ptr<const kernels::Optimizer> inner,
                                                             std::uint32_t replicas, bool keeps) {
  std::unique_ptr<DeviceReplicas> made(new DeviceReplicas(shape, device, stream, std::move(inner)));
  std::size_t elements = 0;
  for (const TensorSpec& tensor : made->tensors_) {
    made->offsets_.push_back(elements);
    elements += (tensor.elements() + kReplicaAlign - 1) / kReplicaAlign * kReplicaAlign;
  }
  auto flat = DeviceMemory<float>::make(device, elements, "a replica's parameters");
  if (!flat) return tl::unexpected(flat.error());
  made->flat_ = std::move(*flat);
  for (const std::size_t offset : made->offsets_) made->parameters_.push_back(made->flat_.data() + offset);
  made->banks_.assign(replicas, StateBanks(keeps));
  made->states_.resize(replicas);
  for (auto& banks : made->states_) {
    banks.resize(keeps ? 2 : 1);
    for (auto& slots : banks) {
      for (int slot = 0; slot < made->inner_->slots(); ++slot) {
        auto state = DeviceMemory<float>::make(device, elements, "the inner optimizer's state");
        if (!state) return tl::unexpected(state.error());
        slots.push_back(std::move(*state));
      }
    }
  }
  return made;
}

Status DeviceReplicas::begin(std::uint32_t replica, InnerState state) {
  replica_ = replica;
  banks_[replica].begin(state);
  if (state != InnerState::kFresh) return {};
  int slot = 0;
  for (DeviceMemory<float>& values : states_[replica][banks_[replica].in()]) {
    launch_fill(values.data(), values.size(), inner_->initial_state(slot++), stream_);
  }
  return device_.check(cudaGetLastError(), "clearing the inner optimizer's state");
}

Status DeviceReplicas::step(std::size_t tensor, const kernels::StepScalars& scalars, const float* from,
                            const float* gradient, std::uint32_t samples) {
  const kernels::BlockArgs args =
      local_step(banks_[replica_], states_[replica_], offsets_[tensor], tensors_[tensor].elements(), from,
                 flat_.data() + offsets_[tensor], gradient, samples);
  kernels::cuda::optimizer_step(*inner_, scalars, args, stream_);
  return device_.check(cudaGetLastError(), "taking a local step of", tensors_[tensor].name);
}

Status DeviceReplicas::subtract(std::size_t tensor, const float* from, float* difference) const {
  launch_difference(from, parameters_[tensor], tensors_[tensor].elements(), difference, stream_);
  return device_.check(cudaGetLastError(), "subtracting the replica's", tensors_[tensor].name);
}

}  // namespace tributary::train

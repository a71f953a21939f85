// HostReplicas: what local steps need on the host (train/model_compute.h, local_round()): the parameters of the replica
// whose round it is, and for every replica the state of its inner optimizer. A replica's parameters live for one round
// only, because every round begins at the servers' parameters, so all replicas of a process share their place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/optimizer.h"
#include "train/aligned_floats.h"
#include "train/mlp_shape.h"

namespace tributary::train {

// Thread rule: one thread at a time.
class HostReplicas {
 public:
  HostReplicas(const MlpShape& shape, std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas);

  // By tensor. Undefined before the first step of a round.
  std::span<const float* const> parameters() const { return parameters_; }
  // The replica's inner state begins anew.
  void reset(std::uint32_t replica);
  // parameters()[tensor] = `from` after a step along gradient / samples; `from` may be parameters()[tensor] itself.
  void step(std::uint32_t replica, std::size_t tensor, const kernels::StepScalars& scalars, const float* from,
            const float* gradient, std::uint32_t samples);
  // difference = from - parameters()[tensor].
  void subtract(std::size_t tensor, const float* from, float* difference) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::shared_ptr<const kernels::Optimizer> inner_;
  std::vector<std::size_t> offsets_;  // of the tensors in what follows
  AlignedFloats flat_;
  std::vector<const float*> parameters_;
  std::vector<std::vector<AlignedFloats>> states_;  // by replica and slot
};

}  // namespace tributary::train

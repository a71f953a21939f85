// HostReplicas: what local steps need on the host (train/model_compute.h, local_round()): the parameters of the replica
// whose round it is, and for every replica the state of its inner optimizer. A replica's parameters live for one round
// only, because every round begins at the servers' parameters, so all replicas of a process share their place.
//
// State that is kept lies in two banks: the first step of a round reads the one and writes the other, so that what the
// round began with stays, without a copy, until the next one. After a loss the job may want a round again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/optimizer.h"
#include "train/aligned_floats.h"
#include "train/mlp_shape.h"
#include "train/model_compute.h"
#include "train/state_banks.h"

namespace tributary::train {

// Thread rule: one thread at a time.
class HostReplicas {
 public:
  HostReplicas(const MlpShape& shape, std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas,
               bool keeps);

  // By tensor. Undefined before the first step of a round.
  std::span<const float* const> parameters() const { return parameters_; }
  // A round of a replica begins, with this inner state, and ends; one that does not end was none.
  void begin(std::uint32_t replica, InnerState state);
  void end() { banks_[replica_].end(); }
  // parameters()[tensor] = `from` after a step along gradient / samples. `from`: in the first step of the round (of
  // this tensor) what the round begins with, then parameters()[tensor].
  void step(std::size_t tensor, const kernels::StepScalars& scalars, const float* from, const float* gradient,
            std::uint32_t samples);
  // difference = from - parameters()[tensor].
  void subtract(std::size_t tensor, const float* from, float* difference) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::shared_ptr<const kernels::Optimizer> inner_;
  std::vector<std::size_t> offsets_;  // of the tensors in what follows
  AlignedFloats flat_;
  std::vector<const float*> parameters_;
  std::uint32_t replica_ = 0;                                    // whose round it is
  std::vector<StateBanks> banks_;                                // by replica
  std::vector<std::vector<std::vector<AlignedFloats>>> states_;  // by replica, bank and slot
};

}  // namespace tributary::train

// HostReplicas: the memory of local steps (train/model_compute.h, local_round()): the parameters of the current
// replica, and for every replica the state of its inner optimizer. A replica's parameters live for one round only,
// because every round begins at the servers' parameters, so all replicas of a process share their place.
//
// Kept state lies in two banks: the first step of a round reads the one and writes the other. So the round's initial
// state stays, without a copy, until the next round. After a loss the job may repeat a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/step/optimizer.h"
#include "train/aligned_floats.h"
#include "train/mlp_shape.h"

namespace tributary::train {

// The state of the inner optimizer that a round of local steps begins with.
enum class InnerState {
  kFresh,  // none: zeros
  kNext,   // the last round's final state
  kAgain,  // the last round's initial state: that round is computed again
};

// Thread rule: one thread at a time.
class HostReplicas {
 public:
  // keeps: state is kept from round to round; otherwise every round is kFresh.
  HostReplicas(const MlpShape& shape, std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas,
               bool keeps);

  // By tensor. Undefined before the first step of a round.
  std::span<const float* const> parameters() const { return parameters_; }
  // Begins a round of a replica, with this inner state, and ends it; a round that does not end leaves no state.
  void begin(std::uint32_t replica, InnerState begins);
  void end() { states_[replica_].last = states_[replica_].out; }
  // parameters()[tensor] = `from` after a step along gradient / samples. `from`: in the tensor's first step of the
  // round the round's initial parameters, then parameters()[tensor].
  void step(std::size_t tensor, const kernels::StepScalars& scalars, const float* from, const float* gradient,
            std::uint32_t samples);
  // difference = from - parameters()[tensor].
  void subtract(std::size_t tensor, const float* from, float* difference) const;

 private:
  // State of a replica's inner optimizer.
  struct State {
    std::vector<std::vector<AlignedFloats>> banks;  // by slot: two if state is kept, else one
    std::size_t last = 0;                           // bank that the last round which came to its end has written
    std::size_t in = 0;                             // bank that the round begins with
    std::size_t out = 0;                            // bank that the round's steps write, and all but the first read
  };

  std::vector<TensorSpec> tensors_;
  std::shared_ptr<const kernels::Optimizer> inner_;
  std::vector<std::size_t> offsets_;  // of the tensors in what follows
  AlignedFloats flat_;
  std::vector<const float*> parameters_;
  std::uint32_t replica_ = 0;  // whose round it is
  std::vector<State> states_;  // by replica
};

}  // namespace tributary::train

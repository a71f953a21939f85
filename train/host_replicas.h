// HostReplicas: what local steps need (train/model_compute.h, local_round()): the parameters of the replica whose round
// it is, and for every replica the state of its inner optimizer. A replica's parameters live for one round only,
// because every round begins at the servers' parameters, so all replicas of a process share their place.
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

namespace tributary::train {

// Which state of the inner optimizer a round of local steps begins with.
enum class InnerState {
  kFresh,  // none: it begins anew
  kNext,   // what the last round left
  kAgain,  // what the last round began with: it is computed once more
};

// Thread rule: one thread at a time.
class HostReplicas {
 public:
  // keeps: state is kept from round to round; otherwise every round is kFresh.
  HostReplicas(const MlpShape& shape, std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas,
               bool keeps);

  // By tensor. Undefined before the first step of a round.
  std::span<const float* const> parameters() const { return parameters_; }
  // A round of a replica begins, with this inner state, and ends; one that does not end was none.
  void begin(std::uint32_t replica, InnerState begins);
  void end() { states_[replica_].last = states_[replica_].out; }
  // parameters()[tensor] = `from` after a step along gradient / samples. `from`: in the first step of the round (of
  // this tensor) what the round begins with, then parameters()[tensor].
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

// No step at all: returns the mean gradient, with which trainers step their own parameters. For optimizers that need
// whole tensors, or that only the trainers have.
#pragma once

#include "kernels/step/formula.h"

namespace tributary::kernels {

struct Mean : Formula {
  static constexpr OptimizerKind kKind = {.name = "mean", .steps = false};
  static constexpr StateNames<0> kState = {};

  static StepScalars scalars(const OptimizerOptions&, std::uint64_t) { return {}; }

  TRIBUTARY_INLINE static StepElement update(const StepScalars&, StepElement, float g) { return {g, 0.0f, 0.0f}; }
};

}  // namespace tributary::kernels

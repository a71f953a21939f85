// AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW has it: p = p * (1 - lr * weight_decay), then Adam's step.
#pragma once

#include "kernels/step/adam.h"

namespace tributary::kernels {

struct AdamW : Adam {
  static constexpr OptimizerKind kKind = {
      .name = "adamw", .keys = Adam::kKind.keys, .lr = 0.001, .weight_decay = 0.01, .momentum = kBeta1Key};

  static StepScalars scalars(const OptimizerOptions& options, std::uint64_t t) {
    StepScalars s = Adam::scalars(options, t);
    s.a[kDecay] = static_cast<float>(1.0 - options.lr * options.weight_decay);
    return s;
  }

  TRIBUTARY_INLINE static StepElement update(const StepScalars& s, StepElement old, float g) {
    return moments(s, {old.p * s.a[kDecay], old.s0, old.s1}, g);
  }
};

}  // namespace tributary::kernels

// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2), decoupled weight decay:
//
//   u = sign(beta1 * m + (1 - beta1) * g)      sign(0) = 0; a NaN stays one, so that it is seen
//   p = p * (1 - lr * weight_decay) - lr * u   m = beta2 * m + (1 - beta2) * g
#pragma once

#include "kernels/step/formula.h"

namespace tributary::kernels {

struct Lion : Formula {
  enum Key { kBeta1Key, kBeta2Key };
  static constexpr OptimizerKind kKind = {.name = "lion",
                                          .keys = {{{"beta1", 0.9, OptionKey::Kind::kFractionBelowOne},
                                                    {"beta2", 0.99, OptionKey::Kind::kFractionBelowOne}}},
                                          .lr = 0.0001,
                                          .momentum = kBeta1Key};
  static constexpr StateNames<1> kState = {"exp_avg"};

  enum Scalar { kLr, kBeta1, kGradWeight1, kBeta2, kGradWeight2, kDecay };
  static StepScalars scalars(const OptimizerOptions& options, std::uint64_t t) {
    StepScalars s;
    s.a[kLr] = static_cast<float>(options.lr);
    s.a[kBeta1] = static_cast<float>(options.own[kBeta1Key]);
    s.a[kGradWeight1] = static_cast<float>(1.0 - options.own[kBeta1Key]);
    s.a[kBeta2] = static_cast<float>(options.own[kBeta2Key]);
    s.a[kGradWeight2] = static_cast<float>(1.0 - options.own[kBeta2Key]);
    s.a[kDecay] = static_cast<float>(1.0 - options.lr * options.weight_decay);
    s.first = t == 1;
    return s;
  }

  // s0: the momentum.
  TRIBUTARY_INLINE static StepElement update(const StepScalars& s, StepElement old, float g) {
    const float u = s.a[kBeta1] * old.s0 + s.a[kGradWeight1] * g;
    float step = u > 0.0f ? s.a[kLr] : u;
    step = u < 0.0f ? -s.a[kLr] : step;
    return {old.p * s.a[kDecay] - step, s.a[kBeta2] * old.s0 + s.a[kGradWeight2] * g, 0.0f};
  }
};

}  // namespace tributary::kernels

// Adam (Kingma & Ba 2015) as torch.optim.Adam has it, its single-tensor path:
//
//   g = g + weight_decay * p
//   m = lerp(m, g, 1 - beta1)          v = beta2 * v + (1 - beta2) * g^2
//   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
#pragma once

#include <cmath>

#include "kernels/step/formula.h"

namespace tributary::kernels {

struct Adam : Formula {
  enum Key { kBeta1Key, kBeta2Key, kEpsKey };
  static constexpr OptimizerKind kKind = {.name = "adam",
                                          .keys = {{{"beta1", 0.9, OptionKey::Kind::kFractionBelowOne},
                                                    {"beta2", 0.999, OptionKey::Kind::kFractionBelowOne},
                                                    {"eps", 1e-8, OptionKey::Kind::kPositive}}},
                                          .lr = 0.001,
                                          .momentum = kBeta1Key};
  static constexpr StateNames<2> kState = {"exp_avg", "exp_avg_sq"};

  // a[kLerp]: how far m moves towards g; or, if it moves more than half-way (lerp_from_gradient), how far from g back
  // to m (the more exact form of the two, and PyTorch's choice).
  enum Scalar { kLerp, kBeta2, kGradSquareWeight, kStepSize, kInverseSqrtCorrection2, kEps, kDecay };
  static StepScalars scalars(const OptimizerOptions& options, std::uint64_t t) {
    const double beta1 = options.own[kBeta1Key], beta2 = options.own[kBeta2Key];
    const double correction1 = 1.0 - std::pow(beta1, static_cast<double>(t));
    const double correction2 = 1.0 - std::pow(beta2, static_cast<double>(t));
    StepScalars s;
    s.lerp_from_gradient = !(1.0 - beta1 < 0.5);
    const float weight = static_cast<float>(1.0 - beta1);
    s.a[kLerp] = s.lerp_from_gradient ? 1.0f - weight : weight;
    s.a[kBeta2] = static_cast<float>(beta2);
    s.a[kGradSquareWeight] = static_cast<float>(1.0 - beta2);
    s.a[kStepSize] = static_cast<float>(options.lr / correction1);
    s.a[kInverseSqrtCorrection2] = static_cast<float>(1.0 / std::sqrt(correction2));
    s.a[kEps] = static_cast<float>(options.own[kEpsKey]);
    s.a[kDecay] = static_cast<float>(options.weight_decay);
    s.first = t == 1;
    return s;
  }

  // s0: m, s1: v. One square root and one division an element: a multiplication by the inverse of sqrt(1 - beta2^t)
  // takes the place of the other division.
  TRIBUTARY_INLINE static StepElement moments(const StepScalars& s, StepElement old, float g) {
    const float base = s.lerp_from_gradient ? g : old.s0;
    const float other = s.lerp_from_gradient ? old.s0 : g;
    const float m = base + s.a[kLerp] * (other - base);
    const float v = s.a[kBeta2] * old.s1 + s.a[kGradSquareWeight] * g * g;
    const float denominator = std::sqrt(v) * s.a[kInverseSqrtCorrection2] + s.a[kEps];
    return {old.p - s.a[kStepSize] * m / denominator, m, v};
  }
  TRIBUTARY_INLINE static StepElement update(const StepScalars& s, StepElement old, float g) {
    return moments(s, old, s.a[kDecay] != 0.0f ? g + s.a[kDecay] * old.p : g);
  }
};

}  // namespace tributary::kernels

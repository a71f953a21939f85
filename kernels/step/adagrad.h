// Adagrad (Duchi et al. 2011) as torch.optim.Adagrad has it:
//
//   g = g + weight_decay * p          s = s + g^2, from initial_accumulator
//   p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
#pragma once

#include <cmath>

#include "kernels/step/formula.h"

namespace tributary::kernels {

struct Adagrad : Formula {
  enum Key { kEpsKey, kLrDecayKey, kAccumulatorKey };
  static constexpr OptimizerKind kKind = {
      .name = "adagrad",
      .keys = {{{"eps", 1e-10, OptionKey::Kind::kPositive},
                {"lr_decay", 0.0, OptionKey::Kind::kNotNegative},
                {"initial_accumulator", 0.0, OptionKey::Kind::kNotNegative, /*of_state=*/true}}}};
  static constexpr StateNames<1> kState = {"sum"};
  static float initial_state(const OptimizerOptions& options) {
    return static_cast<float>(options.own[kAccumulatorKey]);
  }

  enum Scalar { kLr, kEps, kWeightDecay };
  static StepScalars scalars(const OptimizerOptions& options, std::uint64_t t) {
    StepScalars s;
    s.a[kLr] = static_cast<float>(options.lr / (1.0 + static_cast<double>(t - 1) * options.own[kLrDecayKey]));
    s.a[kEps] = static_cast<float>(options.own[kEpsKey]);
    s.a[kWeightDecay] = static_cast<float>(options.weight_decay);
    s.first = t == 1;
    return s;
  }

  // s0: the sum of squares.
  TRIBUTARY_INLINE static StepElement update(const StepScalars& s, StepElement old, float g) {
    const float decayed = s.a[kWeightDecay] == 0.0f ? g : g + s.a[kWeightDecay] * old.p;
    const float sum = old.s0 + decayed * decayed;
    return {old.p - s.a[kLr] * decayed / (std::sqrt(sum) + s.a[kEps]), sum, 0.0f};
  }
};

}  // namespace tributary::kernels

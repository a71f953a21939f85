// Stochastic gradient descent as torch.optim.SGD has it:
//
//   g   = g + weight_decay * p
//   buf = g in the first step, afterwards momentum * buf + (1 - dampening) * g      (only with momentum)
//   d   = nesterov ? g + momentum * buf : buf                                       (g without momentum)
//   p   = p - lr * d
#pragma once

#include "kernels/step/formula.h"

namespace tributary::kernels {

struct Sgd : Formula {
  enum Key { kMomentumKey, kDampeningKey, kNesterovKey };
  static std::vector<OptionFault> faults(const OptimizerOptions& options) {
    std::vector<OptionFault> faults;
    if (options.own[kNesterovKey] == 0.0) return faults;
    if (options.own[kMomentumKey] == 0.0) {
      faults.push_back({"nesterov", "momentum", "needs momentum: set momentum (0.9 is usual) or nesterov = false"});
    }
    if (options.own[kDampeningKey] != 0.0) faults.push_back({"nesterov", "dampening", "needs dampening = 0"});
    return faults;
  }
  static constexpr OptimizerKind kKind = {.name = "sgd",
                                          .keys = {{{"momentum", 0.0, OptionKey::Kind::kFractionBelowOne},
                                                    {"dampening", 0.0, OptionKey::Kind::kFraction},
                                                    {"nesterov", 0.0, OptionKey::Kind::kFlag}}},
                                          .momentum = kMomentumKey,
                                          .faults = &faults};
  static constexpr StateNames<0> kState = {};
  static bool fits(const OptimizerOptions& options) { return options.own[kMomentumKey] == 0.0; }

  enum Scalar { kLr, kMomentum, kGradWeight, kWeightDecay };
  static StepScalars scalars(const OptimizerOptions& options, std::uint64_t t) {
    StepScalars s;
    s.a[kLr] = static_cast<float>(options.lr);
    s.a[kMomentum] = static_cast<float>(options.own[kMomentumKey]);
    s.a[kGradWeight] = static_cast<float>(1.0 - options.own[kDampeningKey]);
    s.a[kWeightDecay] = static_cast<float>(options.weight_decay);
    s.first = t == 1;
    return s;
  }

  TRIBUTARY_INLINE static float decayed(const StepScalars& s, float p, float g) {
    return s.a[kWeightDecay] == 0.0f ? g : g + s.a[kWeightDecay] * p;
  }
  TRIBUTARY_INLINE static StepElement update(const StepScalars& s, StepElement old, float g) {
    return {old.p - s.a[kLr] * decayed(s, old.p, g), 0.0f, 0.0f};
  }
};

// s0: the momentum buffer.
template <bool kNesterov>
struct SgdWithMomentum : Sgd {
  static constexpr StateNames<1> kState = {"momentum_buffer"};
  static bool fits(const OptimizerOptions& options) {
    return !Sgd::fits(options) && (options.own[Sgd::kNesterovKey] != 0.0) == kNesterov;
  }

  TRIBUTARY_INLINE static StepElement update(const StepScalars& s, StepElement old, float g) {
    const float plain = decayed(s, old.p, g);
    const float buf = s.first ? plain : s.a[kMomentum] * old.s0 + s.a[kGradWeight] * plain;
    const float d = kNesterov ? plain + s.a[kMomentum] * buf : buf;
    return {old.p - s.a[kLr] * d, buf, 0.0f};
  }
};
using SgdMomentum = SgdWithMomentum<false>;
using SgdNesterov = SgdWithMomentum<true>;

}  // namespace tributary::kernels

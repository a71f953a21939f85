// Lion's formula for one element (lion.cc says it in words).
#pragma once

#include "kernels/dispatch.h"
#include "kernels/optimizer.h"

namespace tributary::kernels::lion {

enum Scalar { kLr, kBeta1, kGradWeight1, kBeta2, kGradWeight2, kDecay };

// s0: the momentum.
TRIBUTARY_INLINE StepElement update(const StepScalars& s, StepElement old, float g) {
  const float u = s.a[kBeta1] * old.s0 + s.a[kGradWeight1] * g;
  float step = u > 0.0f ? s.a[kLr] : u;
  step = u < 0.0f ? -s.a[kLr] : step;
  return {old.p * s.a[kDecay] - step, s.a[kBeta2] * old.s0 + s.a[kGradWeight2] * g, 0.0f};
}

}  // namespace tributary::kernels::lion

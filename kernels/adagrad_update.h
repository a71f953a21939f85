// Adagrad's formula for one element (adagrad.cc says it in words).
#pragma once

#include <cmath>

#include "kernels/dispatch.h"
#include "kernels/optimizer.h"

namespace tributary::kernels::adagrad {

enum Scalar { kLr, kEps, kWeightDecay };

// s0: the sum of squares.
TRIBUTARY_INLINE StepElement update(const StepScalars& s, StepElement old, float g) {
  const float decayed = s.a[kWeightDecay] == 0.0f ? g : g + s.a[kWeightDecay] * old.p;
  const float sum = old.s0 + decayed * decayed;
  return {old.p - s.a[kLr] * decayed / (std::sqrt(sum) + s.a[kEps]), sum, 0.0f};
}

}  // namespace tributary::kernels::adagrad

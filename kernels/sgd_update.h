// SGD's formula for one element (sgd.cc says it in words).
#pragma once

#include "kernels/dispatch.h"
#include "kernels/optimizer.h"

namespace tributary::kernels::sgd {

enum Scalar { kLr, kMomentum, kGradWeight, kWeightDecay };

TRIBUTARY_INLINE float with_decay(const StepScalars& s, float p, float g) {
  return s.a[kWeightDecay] == 0.0f ? g : g + s.a[kWeightDecay] * p;
}

TRIBUTARY_INLINE StepElement plain(const StepScalars& s, StepElement old, float g) {
  return {old.p - s.a[kLr] * with_decay(s, old.p, g), 0.0f, 0.0f};
}

// s0: the momentum buffer.
TRIBUTARY_INLINE StepElement with_momentum(const StepScalars& s, bool nesterov, StepElement old, float g) {
  const float decayed = with_decay(s, old.p, g);
  const float buf = s.first ? decayed : s.a[kMomentum] * old.s0 + s.a[kGradWeight] * decayed;
  const float d = nesterov ? decayed + s.a[kMomentum] * buf : buf;
  return {old.p - s.a[kLr] * d, buf, 0.0f};
}

}  // namespace tributary::kernels::sgd

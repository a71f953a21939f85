// Delay-compensated gradients (DC-ASGD; Zheng et al. 2017, "Asynchronous Stochastic Gradient Descent with Delay
// Compensation"): a gradient g was computed from parameters `pulled`, and is applied to parameters that have become
// `now` meanwhile. The first-order correction needs the Hessian, whose diagonal is estimated by g * g:
//
//     out = s g + lambda * (s g) * (s g) * (now - pulled)                 element-wise, s = grad_scale
//
// Only servers do this, so it has no twin for GPUs.
#pragma once

#include <cstddef>

namespace tributary::kernels {

struct DelayArgs {
  std::size_t count = 0;
  const float* grad = nullptr;
  float grad_scale = 1.0f;  // 1 / weight: makes it the average, whose square is wanted
  float lambda = 0.0f;
  const float* now = nullptr;
  const float* pulled = nullptr;
  float* out = nullptr;  // may equal grad or pulled
};

void compensate_delay(const DelayArgs& args);

}  // namespace tributary::kernels

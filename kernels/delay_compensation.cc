#include "kernels/delay_compensation.h"

#include "kernels/dispatch.h"

namespace tributary::kernels {
namespace {

TRIBUTARY_MULTIVERSION
void compensate(const float* grad, float scale, float lambda, const float* now, const float* pulled, std::size_t count,
                float* out) {
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) {
    const float g = scale * grad[i];
    out[i] = g + lambda * g * g * (now[i] - pulled[i]);
  }
}

}  // namespace

void compensate_delay(const DelayArgs& args) {
  compensate(args.grad, args.grad_scale, args.lambda, args.now, args.pulled, args.count, args.out);
}

}  // namespace tributary::kernels

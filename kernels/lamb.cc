// LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2, with the identity as phi): Adam's
// direction, whose length per tensor is made that of the tensor's parameters.
//
//   m = lerp(m, g, 1 - beta1)          v = beta2 * v + (1 - beta2) * g^2
//   u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay * p
//   p = p - lr * (||p|| / ||u||) * u,   norms over the whole tensor; their ratio is 1 if either is 0
//
// The ratio comes from outside (Optimizer::layerwise): whoever steps asks for direction() first. There is no twin for
// GPUs, because only servers have whole tensors' norms.
#include "kernels/adam_update.h"

namespace tributary::kernels {
namespace {

using namespace adam;

// In p: u. The scalars are Adam's for a learning rate of 1; kDecay is the weight decay itself.
TRIBUTARY_INLINE StepElement towards(const StepScalars& s, StepElement old, float g) {
  const StepElement next = moments(s, {0.0f, old.s0, old.s1}, g);
  return {s.a[kDecay] * old.p - next.p, next.s0, next.s1};
}

TRIBUTARY_MULTIVERSION
void step_block(const StepScalars& scalars, const BlockArgs& block) {
  const StepScalars s = scalars;  // a copy, which the stores below cannot change: its values stay in registers
  const float *grad = block.grad, *param_in = block.param_in, *m_in = block.state_in[0], *v_in = block.state_in[1];
  float *param_out = block.param_out, *m_out = block.state_out[0], *v_out = block.state_out[1];
  const float grad_scale = block.grad_scale;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const StepElement next = towards(s, {param_in[i], m_in[i], v_in[i]}, grad[i] * grad_scale);
    m_out[i] = next.s0;
    v_out[i] = next.s1;
    param_out[i] = param_in[i] - s.a[kLayerStep] * next.p;
  }
}

TRIBUTARY_MULTIVERSION
void direction_block(const StepScalars& scalars, const BlockArgs& block, float* out) {
  const StepScalars s = scalars;
  const float *grad = block.grad, *param_in = block.param_in, *m_in = block.state_in[0], *v_in = block.state_in[1];
  const float grad_scale = block.grad_scale;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    out[i] = towards(s, {param_in[i], m_in[i], v_in[i]}, grad[i] * grad_scale).p;
  }
}

class Lamb final : public Optimizer {
 public:
  explicit Lamb(const OptimizerOptions& options) : options_(options) {}

  std::string_view name() const override { return "lamb"; }
  int slots() const override { return 2; }
  bool layerwise() const override { return true; }

  StepScalars scalars(std::uint64_t t, double lr) const override {
    StepScalars s = adam::scalars(options_, t, 1.0);
    s.a[kDecay] = static_cast<float>(options_.weight_decay);
    s.a[kLayerStep] = static_cast<float>(lr);
    return s;
  }

  void step(const StepScalars& scalars, const BlockArgs& block) const override { step_block(scalars, block); }
  void direction(const StepScalars& scalars, const BlockArgs& block, float* out) const override {
    direction_block(scalars, block, out);
  }
  StepFormula formula() const override { return StepFormula::kLamb; }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerOptions& options) {
  return std::make_unique<Lamb>(options);
}

}  // namespace tributary::kernels

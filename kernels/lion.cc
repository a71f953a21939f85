// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2), decoupled weight decay:
//
//   u = sign(beta1 * m + (1 - beta1) * g)      sign(0) = 0; a NaN stays one, so that it is seen
//   p = p * (1 - lr * weight_decay) - lr * u   m = beta2 * m + (1 - beta2) * g
#include "kernels/lion_update.h"

namespace tributary::kernels {
namespace {

using namespace lion;

TRIBUTARY_MULTIVERSION
void step_block(const StepScalars& scalars, const BlockArgs& block) {
  const StepScalars s = scalars;  // a copy, which the stores below cannot change: its values stay in registers
  const float *grad = block.grad, *param_in = block.param_in, *m_in = block.state_in[0];
  float *param_out = block.param_out, *m_out = block.state_out[0];
  const float grad_scale = block.grad_scale;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const StepElement next = update(s, {param_in[i], m_in[i], 0.0f}, grad[i] * grad_scale);
    m_out[i] = next.s0;
    param_out[i] = next.p;
  }
}

class Lion final : public Optimizer {
 public:
  explicit Lion(const OptimizerOptions& options) : options_(options) {}

  std::string_view name() const override { return "lion"; }
  int slots() const override { return 1; }

  StepScalars scalars(std::uint64_t t, double lr) const override {
    StepScalars s;
    s.a[kLr] = static_cast<float>(lr);
    s.a[kBeta1] = static_cast<float>(options_.beta1);
    s.a[kGradWeight1] = static_cast<float>(1.0 - options_.beta1);
    s.a[kBeta2] = static_cast<float>(options_.beta2);
    s.a[kGradWeight2] = static_cast<float>(1.0 - options_.beta2);
    s.a[kDecay] = static_cast<float>(1.0 - lr * options_.weight_decay);
    s.first = t == 1;
    return s;
  }

  void step(const StepScalars& scalars, const BlockArgs& block) const override { step_block(scalars, block); }
  StepFormula formula() const override { return StepFormula::kLion; }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerOptions& options) {
  return std::make_unique<Lion>(options);
}

}  // namespace tributary::kernels

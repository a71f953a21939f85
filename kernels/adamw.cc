// AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW has it: p = p * (1 - lr * weight_decay), then Adam's step.
#include "kernels/adam_update.h"

namespace tributary::kernels {
namespace {

using namespace adam;

TRIBUTARY_MULTIVERSION
void step_block(const StepScalars& scalars, const BlockArgs& block) {
  const StepScalars s = scalars;  // a copy, which the stores below cannot change: its values stay in registers
  const float *grad = block.grad, *param_in = block.param_in, *m_in = block.state_in[0], *v_in = block.state_in[1];
  float *param_out = block.param_out, *m_out = block.state_out[0], *v_out = block.state_out[1];
  const float grad_scale = block.grad_scale;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const StepElement next = decoupled(s, {param_in[i], m_in[i], v_in[i]}, grad[i] * grad_scale);
    m_out[i] = next.s0;
    v_out[i] = next.s1;
    param_out[i] = next.p;
  }
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const OptimizerOptions& options) : options_(options) {}

  std::string_view name() const override { return "adamw"; }
  int slots() const override { return 2; }

  StepScalars scalars(std::uint64_t t, double lr) const override {
    StepScalars s = adam::scalars(options_, t, lr);
    s.a[kDecay] = static_cast<float>(1.0 - lr * options_.weight_decay);
    return s;
  }

  void step(const StepScalars& scalars, const BlockArgs& block) const override { step_block(scalars, block); }
  StepFormula formula() const override { return StepFormula::kAdamW; }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options) {
  return std::make_unique<AdamW>(options);
}

}  // namespace tributary::kernels

// Adagrad (Duchi et al. 2011) as torch.optim.Adagrad has it:
//
//   g = g + weight_decay * p          s = s + g^2, from initial_accumulator
//   p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
#include "kernels/adagrad_update.h"

namespace tributary::kernels {
namespace {

using namespace adagrad;

TRIBUTARY_MULTIVERSION
void step_block(const StepScalars& scalars, const BlockArgs& block) {
  const StepScalars s = scalars;  // a copy, which the stores below cannot change: its values stay in registers
  const float grad_scale = block.grad_scale;
  const float *grad = block.grad, *param_in = block.param_in, *sum_in = block.state_in[0];
  float *param_out = block.param_out, *sum_out = block.state_out[0];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const StepElement next = update(s, {param_in[i], sum_in[i], 0.0f}, grad[i] * grad_scale);
    sum_out[i] = next.s0;
    param_out[i] = next.p;
  }
}

class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(const OptimizerOptions& options) : options_(options) {}

  std::string_view name() const override { return "adagrad"; }
  int slots() const override { return 1; }
  float initial_state(int) const override { return static_cast<float>(options_.initial_accumulator); }

  StepScalars scalars(std::uint64_t t, double lr) const override {
    StepScalars s;
    s.a[kLr] = static_cast<float>(lr / (1.0 + static_cast<double>(t - 1) * options_.lr_decay));
    s.a[kEps] = static_cast<float>(options_.eps);
    s.a[kWeightDecay] = static_cast<float>(options_.weight_decay);
    s.first = t == 1;
    return s;
  }

  void step(const StepScalars& scalars, const BlockArgs& block) const override { step_block(scalars, block); }
  StepFormula formula() const override { return StepFormula::kAdagrad; }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adagrad(const OptimizerOptions& options) {
  return std::make_unique<Adagrad>(options);
}

}  // namespace tributary::kernels

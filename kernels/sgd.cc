// Stochastic gradient descent as torch.optim.SGD has it:
//
//   g   = g + weight_decay * p
//   buf = g in the first step, afterwards momentum * buf + (1 - dampening) * g      (only with momentum)
//   d   = nesterov ? g + momentum * buf : buf                                       (g without momentum)
//   p   = p - lr * d
#include "kernels/sgd_update.h"

namespace tributary::kernels {
namespace {

using namespace sgd;

TRIBUTARY_MULTIVERSION
void step_plain(const StepScalars& scalars, const BlockArgs& block) {
  const StepScalars s = scalars;  // a copy, which the stores below cannot change: its values stay in registers
  const float grad_scale = block.grad_scale;
  const float *grad = block.grad, *param_in = block.param_in;
  float* param_out = block.param_out;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    param_out[i] = plain(s, {param_in[i], 0.0f, 0.0f}, grad[i] * grad_scale).p;
  }
}

TRIBUTARY_MULTIVERSION
void step_momentum(const StepScalars& scalars, const BlockArgs& block, bool nesterov) {
  const StepScalars s = scalars;
  const float grad_scale = block.grad_scale;
  const float *grad = block.grad, *param_in = block.param_in, *buf_in = block.state_in[0];
  float *param_out = block.param_out, *buf_out = block.state_out[0];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const StepElement next = with_momentum(s, nesterov, {param_in[i], buf_in[i], 0.0f}, grad[i] * grad_scale);
    buf_out[i] = next.s0;
    param_out[i] = next.p;
  }
}

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerOptions& options) : options_(options) {}

  std::string_view name() const override { return "sgd"; }
  int slots() const override { return options_.momentum == 0.0 ? 0 : 1; }

  StepScalars scalars(std::uint64_t t, double lr) const override {
    StepScalars s;
    s.a[kLr] = static_cast<float>(lr);
    s.a[kMomentum] = static_cast<float>(options_.momentum);
    s.a[kGradWeight] = static_cast<float>(1.0 - options_.dampening);
    s.a[kWeightDecay] = static_cast<float>(options_.weight_decay);
    s.first = t == 1;
    return s;
  }

  void step(const StepScalars& scalars, const BlockArgs& block) const override {
    if (options_.momentum == 0.0) return step_plain(scalars, block);
    step_momentum(scalars, block, options_.nesterov);
  }
  StepFormula formula() const override {
    if (options_.momentum == 0.0) return StepFormula::kSgd;
    return options_.nesterov ? StepFormula::kSgdNesterov : StepFormula::kSgdMomentum;
  }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerOptions& options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace tributary::kernels

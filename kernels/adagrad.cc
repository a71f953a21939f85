// Adagrad (Duchi et al. 2011) as torch.optim.Adagrad has it:
//
//   g = g + weight_decay * p          s = s + g^2, from initial_accumulator
//   p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
#include <cmath>

#include "kernels/dispatch.h"
#include "kernels/optimizer.h"

namespace tributary::kernels {
namespace {

enum Scalar { kLr, kEps, kWeightDecay };

TRIBUTARY_MULTIVERSION
void adagrad(const StepScalars& scalars, const BlockArgs& block) {
  const float lr = scalars.a[kLr], eps = scalars.a[kEps], decay = scalars.a[kWeightDecay],
              grad_scale = block.grad_scale;
  const float *grad = block.grad, *param_in = block.param_in, *sum_in = block.state_in[0];
  float *param_out = block.param_out, *sum_out = block.state_out[0];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const float p = param_in[i];
    const float g = decay == 0.0f ? grad[i] * grad_scale : grad[i] * grad_scale + decay * p;
    const float sum = sum_in[i] + g * g;
    sum_out[i] = sum;
    param_out[i] = p - lr * g / (std::sqrt(sum) + eps);
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

  void step(const StepScalars& scalars, const BlockArgs& block) const override { adagrad(scalars, block); }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adagrad(const OptimizerOptions& options) {
  return std::make_unique<Adagrad>(options);
}

}  // namespace tributary::kernels

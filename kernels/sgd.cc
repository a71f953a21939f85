// Stochastic gradient descent as torch.optim.SGD has it:
//
//   g   = g + weight_decay * p
//   buf = g in the first step, afterwards momentum * buf + (1 - dampening) * g      (only with momentum)
//   d   = nesterov ? g + momentum * buf : buf                                       (g without momentum)
//   p   = p - lr * d
#include "kernels/dispatch.h"
#include "kernels/optimizer.h"

namespace tributary::kernels {
namespace {

enum Scalar { kLr, kMomentum, kGradWeight, kWeightDecay };

TRIBUTARY_MULTIVERSION
void plain(const StepScalars& scalars, const BlockArgs& block) {
  const float lr = scalars.a[kLr], decay = scalars.a[kWeightDecay], grad_scale = block.grad_scale;
  const float *grad = block.grad, *param_in = block.param_in;
  float* param_out = block.param_out;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const float p = param_in[i];
    const float g = decay == 0.0f ? grad[i] * grad_scale : grad[i] * grad_scale + decay * p;
    param_out[i] = p - lr * g;
  }
}

TRIBUTARY_MULTIVERSION
void with_momentum(const StepScalars& scalars, const BlockArgs& block, bool nesterov) {
  const float lr = scalars.a[kLr], momentum = scalars.a[kMomentum], grad_weight = scalars.a[kGradWeight],
              decay = scalars.a[kWeightDecay], grad_scale = block.grad_scale;
  const bool first = scalars.first;
  const float *grad = block.grad, *param_in = block.param_in, *buf_in = block.state_in[0];
  float *param_out = block.param_out, *buf_out = block.state_out[0];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const float p = param_in[i];
    const float g = decay == 0.0f ? grad[i] * grad_scale : grad[i] * grad_scale + decay * p;
    const float buf = first ? g : momentum * buf_in[i] + grad_weight * g;
    const float d = nesterov ? g + momentum * buf : buf;
    buf_out[i] = buf;
    param_out[i] = p - lr * d;
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
    if (options_.momentum == 0.0) return plain(scalars, block);
    with_momentum(scalars, block, options_.nesterov);
  }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerOptions& options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace tributary::kernels

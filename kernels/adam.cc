// Adam (Kingma & Ba 2015) as torch.optim.Adam has it: weight decay is added to the gradient, g = g + weight_decay * p.
#include "kernels/adam_update.h"

namespace tributary::kernels {
namespace {

TRIBUTARY_MULTIVERSION
void adam(const StepScalars& scalars, const BlockArgs& block, bool from_gradient) {
  const StepScalars s = scalars;  // a copy, which the stores below cannot change: its values stay in registers
  const float *grad = block.grad, *param_in = block.param_in, *m_in = block.state_in[0], *v_in = block.state_in[1];
  float *param_out = block.param_out, *m_out = block.state_out[0], *v_out = block.state_out[1];
  const float grad_scale = block.grad_scale;
  const bool decays = s.a[kDecay] != 0.0f;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const float p = param_in[i];
    const float g = decays ? grad[i] * grad_scale + s.a[kDecay] * p : grad[i] * grad_scale;
    const AdamElement next = adam_update(s, from_gradient, {p, m_in[i], v_in[i]}, g);
    m_out[i] = next.m;
    v_out[i] = next.v;
    param_out[i] = next.p;
  }
}

class Adam final : public Optimizer {
 public:
  explicit Adam(const OptimizerOptions& options) : options_(options) {}

  std::string_view name() const override { return "adam"; }
  int slots() const override { return 2; }

  StepScalars scalars(std::uint64_t t, double lr) const override {
    StepScalars s = adam_scalars(options_, t, lr);
    s.a[kDecay] = static_cast<float>(options_.weight_decay);
    return s;
  }

  void step(const StepScalars& scalars, const BlockArgs& block) const override {
    adam(scalars, block, lerps_from_gradient(options_));
  }

 private:
  const OptimizerOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(const OptimizerOptions& options) {
  return std::make_unique<Adam>(options);
}

}  // namespace tributary::kernels

// Optimizer steps behind one interface, a file each (sgd.cc, adam.cc, adamw.cc, adagrad.cc, lion.cc). The formulae
// are PyTorch's; Lion (Chen et al. 2023) follows its paper. Used by the servers, by the standalone reference, and by
// workers in all-reduce mode.
//
// A step is element-wise: the same bits whatever the block, chunk or shard an element lies in, and on every instruction
// set (the kernels are compiled without floating-point contraction). The formula of one element stands in a header
// (sgd_update.h, adam_update.h, adagrad_update.h, lion_update.h), which the CUDA twin includes too (cuda_optimizer.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace tributary::kernels {

inline constexpr int kMaxSlots = 3;  // fp32 state arrays per parameter

// What is the same for every element of one step; computed once per chunk in double and rounded as PyTorch does.
struct StepScalars {
  float a[8] = {};
  bool first = false;               // the first step of this parameter (SGD's momentum buffer starts as the gradient)
  bool lerp_from_gradient = false;  // Adam, AdamW: adam_update.h
};

// One parameter and its state, as the formulae take and return them.
struct StepElement {
  float p = 0.0f, s0 = 0.0f, s1 = 0.0f;
};

// Which formula a step is: what a device must know beside the scalars.
enum class StepFormula : std::uint8_t { kSgd, kSgdMomentum, kSgdNesterov, kAdam, kAdamW, kAdagrad, kLion };

struct BlockArgs {
  std::size_t count = 0;
  const float* grad = nullptr;      // summed gradient
  float grad_scale = 1.0f;          // multiplies it first: 1 / total weight makes it the average
  const float* param_in = nullptr;  // may equal param_out, must not overlap it otherwise
  float* param_out = nullptr;
  const float* state_in[kMaxSlots] = {};  // likewise
  float* state_out[kMaxSlots] = {};
};

struct OptimizerOptions {  // as common/config/config.h's OptimizerConfig, without the schedule
  double weight_decay = 0.0, momentum = 0.0, dampening = 0.0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, lr_decay = 0.0,
         initial_accumulator = 0.0;
  bool nesterov = false;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::string_view name() const = 0;
  virtual int slots() const = 0;
  virtual float initial_state(int slot) const { return (void)slot, 0.0f; }
  // t: 1-based number of the step; lr: the scheduled learning rate of this step.
  virtual StepScalars scalars(std::uint64_t t, double lr) const = 0;
  virtual void step(const StepScalars& scalars, const BlockArgs& block) const = 0;
  virtual StepFormula formula() const = 0;
};

std::unique_ptr<Optimizer> make_sgd(const OptimizerOptions& options);
std::unique_ptr<Optimizer> make_adam(const OptimizerOptions& options);
std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options);
std::unique_ptr<Optimizer> make_adagrad(const OptimizerOptions& options);
std::unique_ptr<Optimizer> make_lion(const OptimizerOptions& options);
// By name ("sgd", "adam", "adamw", "adagrad", "lion"); null for an unknown one.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerOptions& options);

}  // namespace tributary::kernels

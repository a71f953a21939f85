// Optimizer steps behind one interface. The formulae are PyTorch's; Lion follows its paper. Used by the servers, by
// the standalone reference, and by workers in all-reduce mode.
//
// A step is element-wise: the same bits whatever the block, chunk or shard an element lies in, and on every instruction
// set (the kernels are compiled without floating-point contraction). Each formula has its header (kernels/formula.h),
// which the CPU's loops (optimizer.cc) and the CUDA twin (optimizer.cu) expand; kernels/optimizers.h lists them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tributary::kernels {

inline constexpr int kMaxSlots = 2;  // fp32 state arrays per parameter

// Scalars common to all elements of one step; computed once per chunk in double and rounded as PyTorch does.
struct StepScalars {
  float a[8] = {};
  bool first = false;               // the first step of this parameter (SGD's momentum buffer starts as the gradient)
  bool lerp_from_gradient = false;  // Adam, AdamW: adam.h
};

struct BlockArgs {
  std::size_t count = 0;
  const float* grad = nullptr;      // summed gradient
  float grad_scale = 1.0f;          // multiplies it first: 1 / total weight makes it the average
  const float* param_in = nullptr;  // may equal param_out, must not overlap it otherwise
  float* param_out = nullptr;
  const float* state_in[kMaxSlots] = {};  // likewise
  float* state_out[kMaxSlots] = {};

  // Elements [from, to) of it.
  BlockArgs part(std::size_t from, std::size_t to) const {
    BlockArgs part = *this;
    part.count = to - from;
    part.grad += from;
    part.param_in += from;
    part.param_out += from;
    for (int slot = 0; slot < kMaxSlots; ++slot) {
      if (part.state_in[slot] != nullptr) part.state_in[slot] += from;
      if (part.state_out[slot] != nullptr) part.state_out[slot] += from;
    }
    return part;
  }
};

struct OptimizerOptions {
  double lr = 0.01;  // before the schedule
  double weight_decay = 0.0, momentum = 0.0, dampening = 0.0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, lr_decay = 0.0, initial_accumulator = 0.0;

  static void fields(auto& o, auto&& key) {
    key("lr", o.lr);
    key("weight_decay", o.weight_decay);
    key("momentum", o.momentum);
    key("dampening", o.dampening);
    key("nesterov", o.nesterov);
    key("beta1", o.beta1);
    key("beta2", o.beta2);
    key("eps", o.eps);
    key("lr_decay", o.lr_decay);
    key("initial_accumulator", o.initial_accumulator);
  }
};

using OptimizerOption = double OptimizerOptions::*;

// An optimizer's name, keys and defaults in configurations.
struct OptimizerKind {
  std::string_view name;
  std::array<std::string_view, 4> keys;  // of OptimizerOptions that it has, besides lr and weight_decay; "": no more
  OptimizerOptions defaults;             // PyTorch's, where it has them
  bool steps = true;                     // false: it has no lr and no weight_decay either
  OptimizerOption momentum = nullptr;    // which of them schedules of the momentum change, if any
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual const OptimizerKind& kind() const = 0;
  std::string_view name() const { return kind().name; }
  // State arrays; their names are PyTorch's, or the paper's.
  virtual std::span<const std::string_view> state_names() const = 0;
  int slots() const { return static_cast<int>(state_names().size()); }
  virtual float initial_state(int slot) const = 0;
  // options(): those it was made with. fits(): whether its formula serves `options`, too.
  virtual const OptimizerOptions& options() const = 0;
  virtual bool fits(const OptimizerOptions& options) const = 0;
  // t: 1-based number of the step. options: of this step; its lr is the scheduled one.
  virtual StepScalars scalars(std::uint64_t t, const OptimizerOptions& options) const = 0;
  StepScalars scalars(std::uint64_t t, double lr) const {
    OptimizerOptions scheduled = options();
    scheduled.lr = lr;
    return scalars(t, scheduled);
  }
  virtual void step(const StepScalars& scalars, const BlockArgs& block) const = 0;
  virtual std::size_t formula() const = 0;  // its place in kernels/optimizers.h
};

// Null for an unknown name.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerOptions& options);

std::span<const OptimizerKind> optimizer_kinds();
const OptimizerKind* optimizer_kind(std::string_view name);  // nullptr: there is none
std::vector<std::string_view> optimizer_names();

}  // namespace tributary::kernels

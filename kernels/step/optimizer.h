// Optimizer steps behind one interface. The formulae are PyTorch's; Lion follows its paper. Used by the servers, by
// the standalone reference, and by workers in all-reduce mode.
//
// A step is element-wise: the same bits whatever the block, chunk or shard an element lies in, and on every instruction
// set (the kernels are compiled without floating-point contraction). Each formula has its header (kernels/step/formula.h),
// which the CPU's loops (optimizer.cc) and the CUDA twin (optimizer.cu) expand; kernels/step/optimizers.h lists them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
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

// A key of an optimizer in configurations, next to its formula.
struct OptionKey {
  enum class Kind { kFlag, kFraction, kFractionBelowOne, kPositive, kNotNegative };

  std::string_view name;  // "": none
  double standard = 0.0;  // PyTorch's, where it has one; of a flag 1 or 0
  Kind kind = Kind::kNotNegative;
  bool of_state = false;  // the first state depends on it: the same in all groups
};

// Values of a job's, or a group's, optimizer.
struct OptimizerOptions {
  static constexpr std::size_t kMaxKeys = 4;

  double lr = 0.01;  // before the schedule
  double weight_decay = 0.0;
  std::array<double, kMaxKeys> own = {};  // in the order of OptimizerKind::keys

  bool operator==(const OptimizerOptions&) const = default;
};

// A fault of values that do not go together.
struct OptionFault {
  std::string_view key, other, message;  // both are keys of the optimizer
};

// An optimizer's name, keys and standards in configurations.
struct OptimizerKind {
  static constexpr std::size_t kNone = ~std::size_t{0};

  std::string_view name;
  // Besides lr and weight_decay. Unused places are last, and have no name.
  std::array<OptionKey, OptimizerOptions::kMaxKeys> keys = {};
  double lr = 0.01, weight_decay = 0.0;  // PyTorch's standards
  bool steps = true;                     // false: it has no lr and no weight_decay either
  std::size_t momentum = kNone;          // place of the key that schedules of the momentum change, if any
  std::vector<OptionFault> (*faults)(const OptimizerOptions&) = nullptr;

  std::span<const OptionKey> own_keys() const;  // those with a name
  OptimizerOptions standards() const;
  std::size_t place(std::string_view key) const;  // in `keys`; kNone: it has no such key
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
  virtual std::size_t formula() const = 0;  // its place in kernels/step/optimizers.h
};

// Null for an unknown name.
std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerOptions& options);

std::span<const OptimizerKind> optimizer_kinds();
const OptimizerKind* optimizer_kind(std::string_view name);  // nullptr: there is none
// Returns an optimizer's standards with these values of lr, weight_decay and its keys. Keys that it does not have are
// left out. REQUIRES: there is such an optimizer.
OptimizerOptions options_of(std::string_view optimizer, const std::vector<std::pair<std::string_view, double>>& values);
// The keys of all optimizers, each name once.
std::span<const OptionKey> option_keys();
std::vector<std::string_view> optimizer_names();

}  // namespace tributary::kernels

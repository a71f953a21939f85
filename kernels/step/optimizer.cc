#include "kernels/step/optimizer.h"

#include <algorithm>
#include <vector>

#include "kernels/step/optimizers.h"

namespace tributary::kernels {
namespace {

template <typename F>
TRIBUTARY_INLINE void step_elements(const StepScalars& scalars, const BlockArgs& block) {
  constexpr std::size_t kSlots = F::kState.size();
  static_assert(kSlots <= kMaxSlots);
  const StepScalars s = scalars;  // a copy, which the stores below cannot change: its values stay in registers
  const float grad_scale = block.grad_scale;
  const float *grad = block.grad, *param_in = block.param_in;
  const float *s0_in = block.state_in[0], *s1_in = block.state_in[1];
  float *param_out = block.param_out, *s0_out = block.state_out[0], *s1_out = block.state_out[1];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < block.count; ++i) {
    const StepElement old = {param_in[i], kSlots > 0 ? s0_in[i] : 0.0f, kSlots > 1 ? s1_in[i] : 0.0f};
    const StepElement next = F::update(s, old, grad[i] * grad_scale);
    if constexpr (kSlots > 0) s0_out[i] = next.s0;
    if constexpr (kSlots > 1) s1_out[i] = next.s1;
    param_out[i] = next.p;
  }
}

#define TRIBUTARY_STEP(F)                                                  \
  TRIBUTARY_MULTIVERSION                                                   \
  void step_block(F, const StepScalars& scalars, const BlockArgs& block) { \
    step_elements<F>(scalars, block);                                      \
  }
TRIBUTARY_OPTIMIZERS(TRIBUTARY_STEP)
#undef TRIBUTARY_STEP

template <typename F>
class OptimizerOf final : public Optimizer {
 public:
  OptimizerOf(const OptimizerOptions& options, std::size_t place) : options_(options), place_(place) {}

  const OptimizerKind& kind() const override { return F::kKind; }
  std::span<const std::string_view> state_names() const override { return F::kState; }
  float initial_state(int) const override { return F::initial_state(options_); }
  const OptimizerOptions& options() const override { return options_; }
  bool fits(const OptimizerOptions& options) const override { return F::fits(options); }
  StepScalars scalars(std::uint64_t t, const OptimizerOptions& options) const override {
    return F::scalars(options, t);
  }
  void step(const StepScalars& scalars, const BlockArgs& block) const override { step_block(F{}, scalars, block); }
  std::size_t formula() const override { return place_; }

 private:
  const OptimizerOptions options_;
  const std::size_t place_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerOptions& options) {
  std::size_t place = 0;
#define TRIBUTARY_MAKE(F)                                                                                 \
  if (name == F::kKind.name && F::fits(options)) return std::make_unique<OptimizerOf<F>>(options, place); \
  ++place;
  TRIBUTARY_OPTIMIZERS(TRIBUTARY_MAKE)
#undef TRIBUTARY_MAKE
  return nullptr;
}

std::span<const OptimizerKind> optimizer_kinds() {
  static const std::vector<OptimizerKind> all = [] {
    std::vector<OptimizerKind> kinds;
    const auto add = [&](const OptimizerKind& kind) {  // formulae of one kind stand together
      if (kinds.empty() || kinds.back().name != kind.name) kinds.push_back(kind);
    };
#define TRIBUTARY_ADD(F) add(F::kKind);
    TRIBUTARY_OPTIMIZERS(TRIBUTARY_ADD)
#undef TRIBUTARY_ADD
    return kinds;
  }();
  return all;
}

const OptimizerKind* optimizer_kind(std::string_view name) {
  const auto kinds = optimizer_kinds();
  const auto found = std::ranges::find(kinds, name, &OptimizerKind::name);
  return found == kinds.end() ? nullptr : &*found;
}

std::span<const OptionKey> OptimizerKind::own_keys() const {
  return std::span(keys).first(static_cast<std::size_t>(std::ranges::find(keys, "", &OptionKey::name) - keys.begin()));
}

OptimizerOptions OptimizerKind::standards() const {
  OptimizerOptions options{.lr = lr, .weight_decay = weight_decay};
  for (std::size_t i = 0; i < keys.size(); ++i) options.own[i] = keys[i].standard;
  return options;
}

std::size_t OptimizerKind::place(std::string_view key) const {
  const std::span<const OptionKey> own = own_keys();
  const auto found = std::ranges::find(own, key, &OptionKey::name);
  return found == own.end() ? kNone : static_cast<std::size_t>(found - own.begin());
}

OptimizerOptions options_of(std::string_view optimizer,
                            const std::vector<std::pair<std::string_view, double>>& values) {
  const OptimizerKind& kind = *optimizer_kind(optimizer);
  OptimizerOptions options = kind.standards();
  for (const auto& [key, value] : values) {
    const std::size_t place = kind.place(key);
    if (key == "lr") options.lr = value;
    if (key == "weight_decay") options.weight_decay = value;
    if (place != OptimizerKind::kNone) options.own[place] = value;
  }
  return options;
}

std::span<const OptionKey> option_keys() {
  static const std::vector<OptionKey> all = [] {
    std::vector<OptionKey> keys;
    for (const OptimizerKind& kind : optimizer_kinds()) {
      for (const OptionKey& key : kind.own_keys()) {
        if (std::ranges::find(keys, key.name, &OptionKey::name) == keys.end()) keys.push_back(key);
      }
    }
    return keys;
  }();
  return all;
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (const OptimizerKind& kind : optimizer_kinds()) names.push_back(kind.name);
  return names;
}

}  // namespace tributary::kernels

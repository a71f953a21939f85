// An optimizer's section in configurations. Its keys stand next to its formula (kernels/step/formula.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/step/optimizer.h"

namespace tributary {

struct OptimizerConfig : kernels::OptimizerOptions {
  std::string name = "sgd";  // kernels/step/optimizers.h has them all

  // The value of a key besides lr and weight_decay. REQUIRES: the optimizer has the key.
  double& operator[](std::string_view key);
  double operator[](std::string_view key) const;
};

// Returns the optimizer with its standard values (sgd's for an unknown name).
OptimizerConfig default_optimizer(std::string_view name);

// The servers and the standalone reference must make the same one. Null if no optimizer has config.name (job_json checks
// the name, but a peer may be of another release).
std::unique_ptr<kernels::Optimizer> make_optimizer(const OptimizerConfig& config);

// Calls visit(key, member) for the keys of all optimizers, so that each job's canonical form has all of them. A key that
// `optimizer` does not have has its standard value, and what is read for the key goes nowhere.
template <class Options>
void visit_options(std::string_view optimizer, Options& options, auto&& visit) {
  visit("lr", options.lr);
  visit("weight_decay", options.weight_decay);
  const kernels::OptimizerKind* kind = kernels::optimizer_kind(optimizer);
  for (const kernels::OptionKey& key : kernels::option_keys()) {
    const std::size_t place = kind ? kind->place(key.name) : kernels::OptimizerKind::kNone;
    double value = place == kernels::OptimizerKind::kNone ? key.standard : options.own[place];
    if (key.kind == kernels::OptionKey::Kind::kFlag) {
      bool flag = value != 0.0;
      visit(key.name, flag);
      value = flag ? 1.0 : 0.0;
    } else {
      visit(key.name, value);
    }
    if constexpr (!std::is_const_v<Options>) {
      if (place != kernels::OptimizerKind::kNone) options.own[place] = value;
    }
  }
}

}  // namespace tributary

#include "common/math/step_settings.h"

#include <cmath>
#include <utility>

#include "common/base/printed.h"

namespace tributary {
namespace {

bool said(double value) {
  return value != StepSettings::kConfigured;
}

}  // namespace

bool StepSettings::sound() const {
  const auto is = [](double value) { return !said(value) || (std::isfinite(value) && value >= 0.0); };
  return is(lr) && is(weight_decay) && is(momentum);
}

kernels::OptimizerOptions StepSettings::over(const kernels::Optimizer& optimizer) const {
  kernels::OptimizerOptions options = optimizer.options();
  if (said(lr)) options.lr = lr;
  if (said(weight_decay)) options.weight_decay = weight_decay;
  const std::size_t its_momentum = optimizer.kind().momentum;
  if (said(momentum) && its_momentum != kernels::OptimizerKind::kNone) options.own[its_momentum] = momentum;
  return options;
}

std::string StepSettings::in_words() const {
  std::string words;
  for (const auto& [name, value] :
       {std::pair{"lr", lr}, std::pair{"weight_decay", weight_decay}, std::pair{"momentum", momentum}}) {
    if (said(value)) words += (words.empty() ? "" : ", ") + std::string(name) + " " + printed("%.17g", value);
  }
  return words.empty() ? "nothing" : words;
}

bool takes(const kernels::Optimizer& optimizer, const StepSettings& settings) {
  const kernels::OptimizerKind& kind = optimizer.kind();
  if (!settings.sound() || (said(settings.weight_decay) && !kind.steps)) return false;
  if (!said(settings.momentum)) return true;
  return kind.momentum != kernels::OptimizerKind::kNone && settings.momentum < 1.0 &&
         optimizer.fits(settings.over(optimizer));
}

}  // namespace tributary

#include "common/config/optimizer_config.h"

namespace tributary {

double& OptimizerConfig::operator[](std::string_view key) {
  return own.at(kernels::optimizer_kind(name)->place(key));
}

double OptimizerConfig::operator[](std::string_view key) const {
  return own.at(kernels::optimizer_kind(name)->place(key));
}

OptimizerConfig default_optimizer(std::string_view name) {
  const kernels::OptimizerKind* kind = kernels::optimizer_kind(name);
  return {kind ? kind->standards() : kernels::OptimizerOptions{}, std::string(name)};
}

std::unique_ptr<kernels::Optimizer> make_optimizer(const OptimizerConfig& config) {
  return kernels::make_optimizer(config.name, config);
}

}  // namespace tributary

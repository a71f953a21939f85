#include "kernels/optimizer.h"

namespace tributary::kernels {

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const OptimizerOptions& options) {
  if (name == "sgd") return make_sgd(options);
  if (name == "adam") return make_adam(options);
  if (name == "adamw") return make_adamw(options);
  if (name == "adagrad") return make_adagrad(options);
  if (name == "lion") return make_lion(options);
  return nullptr;
}

}  // namespace tributary::kernels

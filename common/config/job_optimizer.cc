#include "common/config/job_optimizer.h"

namespace tributary {

std::unique_ptr<kernels::Optimizer> make_optimizer(const OptimizerConfig& config) {
  return kernels::make_optimizer(config.name, {.weight_decay = config.weight_decay,
                                               .momentum = config.momentum,
                                               .dampening = config.dampening,
                                               .beta1 = config.beta1,
                                               .beta2 = config.beta2,
                                               .eps = config.eps,
                                               .lr_decay = config.lr_decay,
                                               .initial_accumulator = config.initial_accumulator,
                                               .nesterov = config.nesterov});
}

}  // namespace tributary

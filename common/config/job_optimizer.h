// The optimizer that a job's configuration names: the servers and the standalone reference must make the same one.
#pragma once

#include <memory>

#include "common/config/config.h"

namespace tributary {

// Null if no optimizer has config.name (job_json checks it, but a peer may be of another release).
inline std::unique_ptr<kernels::Optimizer> make_optimizer(const OptimizerConfig& config) {
  return kernels::make_optimizer(config.name, config);
}

}  // namespace tributary

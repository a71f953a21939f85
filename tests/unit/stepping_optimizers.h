// The optimizers of kernels/step/optimizers.h that step, by name: a test that goes through them misses none.
#pragma once

#include <string>
#include <vector>

#include "kernels/step/optimizer.h"

namespace tributary::testing {

inline std::vector<std::string> stepping_optimizers() {
  std::vector<std::string> names;
  for (const kernels::OptimizerKind& kind : kernels::optimizer_kinds()) {
    if (kind.steps) names.emplace_back(kind.name);
  }
  return names;
}

}  // namespace tributary::testing

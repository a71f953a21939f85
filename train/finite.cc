#include "train/finite.h"

#include <cmath>

#include "common/base/printed.h"
#include "kernels/facts.h"

namespace tributary::train {

const char* const kNotFiniteAdvice =
    "; a smaller optimizer.lr, or a [gate], which skips such rounds, keeps a job from that; go on from an earlier "
    "checkpoint (`tributary checkpoint restore`), or train anew (`--fresh`)";

std::string not_finite(Round round, double loss) {
  if (std::isfinite(loss)) return {};
  return "the loss of round " + std::to_string(round.value) + " is " + printed("%g", loss);
}

std::string not_finite(const std::vector<TensorSpec>& tensors, std::span<const float* const> parameters) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const kernels::GradientFacts facts = kernels::gradient_facts(parameters[t], tensors[t].elements());
    if (facts.non_finite == 0) continue;
    return std::to_string(facts.non_finite) + " of " + std::to_string(tensors[t].elements()) + " values of tensor '" +
           tensors[t].name + "' are not finite";
  }
  return {};
}

}  // namespace tributary::train

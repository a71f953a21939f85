// Checks whether a job's numbers are still finite. Too large a learning rate, or damaged samples, end in NaN or
// infinities, which spread and never go away by themselves.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"

namespace tributary::train {

// The cure, to be appended to the messages below.
extern const char* const kNotFiniteAdvice;

// Describes a loss that is not finite; empty: it is finite.
std::string not_finite(Round round, double loss);
// Names the first tensor with values that are not finite, and their number; empty: all are finite.
std::string not_finite(const std::vector<TensorSpec>& tensors, std::span<const float* const> parameters);

}  // namespace tributary::train

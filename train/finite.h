// Whether a job's numbers are still numbers. A learning rate that is too large, or samples that are damaged, end in NaN
// or infinities, which spread and never go away by themselves.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"

namespace tributary::train {

// What to do about it, to be put behind the following.
extern const char* const kNotFiniteAdvice;

// In words, or empty if it is finite.
std::string not_finite(Round round, double loss);
// The first tensor that has values which are not finite, and how many, or empty: they all are.
std::string not_finite(const std::vector<TensorSpec>& tensors, std::span<const float* const> parameters);

}  // namespace tributary::train

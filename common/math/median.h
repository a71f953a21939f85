// The median of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tributary {

// Returns the median; with an even number of values the mean of the two in the middle; with none 0.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n == 0 ? 0.0 : (values[(n - 1) / 2] + values[n / 2]) / 2.0;
}

}  // namespace tributary

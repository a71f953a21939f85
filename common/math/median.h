// The median of what was measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tributary {

// Of an even number of values the mean of the two in the middle; 0 of none.
inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n == 0 ? 0.0 : (values[(n - 1) / 2] + values[n / 2]) / 2.0;
}

}  // namespace tributary

// What the single-process measurements share.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tributary::bench {

// Of the calling thread. Other processes' turns on the same core do not count, while waiting for memory does.
inline double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// REQUIRES: not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace tributary::bench

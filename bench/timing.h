// Helpers of the single-process measurements.
#pragma once

#include <time.h>

#include "common/math/median.h"

namespace tributary::bench {

// CPU seconds of the calling thread. Waiting for memory counts, other processes' turns on the same core do not.
inline double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

using tributary::median;

}  // namespace tributary::bench

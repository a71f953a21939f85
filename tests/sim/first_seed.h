// How a planted bug is looked for, in either world of the simulator.
#pragma once

#include <cstdint>

namespace tributary::sim {

// The first of the seeds 0 to `seeds` - 1 that does not end as it must; `seeds` if all do. run(seed): its outcome.
template <class Run>
std::uint64_t first_seed_that_fails(std::uint64_t seeds, Run run) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    if (!run(seed).ok) return seed;
  }
  return seeds;
}

}  // namespace tributary::sim

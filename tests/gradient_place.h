// Where a rank writes the gradient of a round, as Session::gradient() has it, for tests that stand in for trainers.
#pragma once

#include <cstdint>

#include "worker/node/job.h"

namespace tributary::testing {

// REQUIRES: not on devices.
inline float* gradient_place(const NodeJob& job, std::uint32_t rank, Round round) {
  const NodeJobSpec& spec = job.spec();
  if (!spec.gradients_in_ring) return const_cast<float*>(job.gradients(rank));
  return reinterpret_cast<float*>(spec.redo->memory().data() + spec.redo->slot_offset(round));
}

}  // namespace tributary::testing

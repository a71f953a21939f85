// Bugs planted inside the lanes' own code: tests/sim/plant.py writes copies of product sources in which each bug stands
// next to the line it replaces. Only the programs that look for planted bugs link those copies.
#pragma once

#include "common/config/gate_rules.h"
#include "tests/sim/mutation.h"

namespace tributary::sim {

inline thread_local Mutation planted_mutation = Mutation::kNone;  // of the world that runs on this thread
inline bool planted(Mutation mutation) {
  return planted_mutation == mutation;
}

}  // namespace tributary::sim

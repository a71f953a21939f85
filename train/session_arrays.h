// SessionArrays: where a session's gradients and parameters are, as computing takes it: on the device, if the worker
// lends memory of it, or in host memory.
#pragma once

#include <vector>

#include "session/session.h"
#include "train/model_compute.h"

namespace tributary::train {

// Thread rule: one thread at a time.
class SessionArrays {
 public:
  // What a session of so many tensors offers; valid until the next call.
  RankMemory of(Session& session, std::size_t tensors);
  // Before each round of a session that `of` was asked about: what it returned leads to this round's gradients.
  void next_round(Session& session);

 private:
  std::vector<const float*> parameters_;  // by tensor, in the session's memory
  std::vector<float*> gradients_;
};

}  // namespace tributary::train

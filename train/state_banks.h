// StateBanks: which of two places a round of local steps reads its inner state from and which it writes
// (train/host_replicas.h).
#pragma once

#include "common/assert.h"
#include "train/model_compute.h"

namespace tributary::train {

class StateBanks {
 public:
  // keeps: there are two banks; otherwise one, and every round is kFresh.
  explicit StateBanks(bool keeps) : keeps_(keeps) {}

  // in(): what the round begins with. REQUIRES of kFresh: the caller fills it.
  void begin(InnerState state) {
    TRIB_ASSERT(keeps_ || state == InnerState::kFresh);
    if (!keeps_) return;
    in_ = state == InnerState::kNext ? last_ : 1 - last_;
    out_ = 1 - in_;
  }
  int in() const { return in_; }
  // What its steps write, and all but the first read.
  int out() const { return out_; }
  void end() { last_ = out_; }

 private:
  bool keeps_;
  int last_ = 0;  // written by the last round that came to its end
  int in_ = 0, out_ = 0;
};

}  // namespace tributary::train

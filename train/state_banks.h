// StateBanks: which of two places a round of local steps reads its inner state from and which it writes
// (train/host_replicas.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/assert.h"
#include "kernels/optimizer.h"
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

// A local step of a tensor's `count` elements, which lie at `offset` in the replica's arrays. states: [bank][slot],
// each with data(). The round's first step reads the session's parameters (`from` is not `own`) and the state that the
// round begins with, the others what the step before has left.
template <class States>
kernels::BlockArgs local_step(const StateBanks& banks, States& states, std::size_t offset, std::size_t count,
                              const float* from, float* own, const float* gradient, std::uint32_t samples) {
  kernels::BlockArgs args;
  args.count = count;
  args.grad = gradient;
  args.grad_scale = static_cast<float>(1.0 / samples);
  args.param_in = from;
  args.param_out = own;
  auto& read = states[from != own ? banks.in() : banks.out()];
  auto& written = states[banks.out()];
  for (std::size_t slot = 0; slot < written.size(); ++slot) {
    args.state_in[slot] = read[slot].data() + offset;
    args.state_out[slot] = written[slot].data() + offset;
  }
  return args;
}

}  // namespace tributary::train

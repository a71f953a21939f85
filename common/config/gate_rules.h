// The arithmetic of the round gate: global-norm clipping and AMP's skip of non-finite rounds with a dynamic loss scale.
// One decision a round, the same whatever servers, lanes and (for chunks of 1024 * 2^k elements) chunk size there are,
// because sums of squares are added in one fixed tree over blocks of the flat parameter space. The standalone reference
// uses the same code.
//
//   mean  = sum of all gradients / total weight
//   norm  = ||mean / loss scale||
//   applied: (mean / loss scale) * min(1, clip_norm / (norm + 1e-6)),   as torch.nn.utils.clip_grad_norm_
//   skipped: if any value of the sum is NaN or infinite; the scale is multiplied by backoff_factor
//   after growth_interval rounds in a row that were not skipped it is multiplied by growth_factor,
//   as torch.amp.GradScaler
//
// Scales and their factors are powers of two, so that scaling and unscaling round nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/layout.h"
#include "common/config/config.h"
#include "common/math/gate_decision.h"
#include "kernels/lane_sum.h"

namespace tributary {

// Pairwise sum of terms that are 0 or more and whose places in the flat space matter: node k of level l adds the terms
// from k * 2^l on. A prefix that is cut at multiples of a power of two can be added part by part.
class TreeTotal {
 public:
  // start: the place of the first term; those before it are 0.
  explicit TreeTotal(std::uint64_t start = 0) : count_(start) {}
  void add(double term);
  double total() const;

 private:
  double levels_[64] = {};
  std::uint64_t count_;
};

// Elements of the flat space that make a term: the smallest chunk.
inline constexpr std::size_t kGateBlock = kernels::kSumLanes;
static_assert(kGateBlock * sizeof(float) == kMinChunkBytes);

// Returns the facts of a chunk's sum of this weight.
GateFacts gate_facts(std::span<const float> sum, std::uint64_t weight);

// The state before round 1.
GateDecision first_gate_state(const GateConfig& config);
// chunks: of all chunks, in the order of the flat space. before: the decision of the round before.
GateDecision decide_gate(const GateConfig& config, const GateDecision& before, std::span<const GateFacts> chunks);

// The factor of the sum before the step.
inline float gate_scale(const GateDecision& decision, std::uint64_t weight) {
  return static_cast<float>(decision.coefficient / static_cast<double>(weight));
}

}  // namespace tributary

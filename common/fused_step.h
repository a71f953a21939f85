// Hold-then-fuse: one pass over memory for n-way sum, scale, optimizer step and wire encoding of one chunk, block by block in
// cache. The servers' hot loop; the standalone reference uses the same code, hence the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "common/encoding.h"
#include "kernels/optimizer.h"

namespace tributary {

struct FusedArgs {
  std::size_t elements = 0;
  std::span<const std::byte* const> frames;  // encoded gradients in node order; summed as kernels/tree_sum.h defines
  const Encoding* push = nullptr;            // encoding of the frames
  float scale = 1.0f;                        // 1 / total weight: multiplies the sum before the step
  const float* param_in = nullptr;           // in place (== param_out) or disjoint
  float* param_out = nullptr;
  const float* state_in[kernels::kMaxSlots] = {};
  float* state_out[kernels::kMaxSlots] = {};
  const Encoding* pull = nullptr;            // encodes param_out into `answer`, unless answer is null
  std::byte* answer = nullptr;
};

// Elements handled at a time. The sum is taken in bursts of this many: short ones, so that the streams of frames, state and
// parameters all stay in the prefetchers' view (with two frames 256 is 1.5 times faster than 2048, with one it is the same).
inline constexpr std::size_t kFusedBlock = 256;

void fused_step(const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars, const FusedArgs& args);

}  // namespace tributary

// Hold-then-fuse: one pass over memory for n-way sum, scale, optimizer step and wire encoding of one chunk, block by
// block in cache. The servers' hot loop; the standalone reference uses the same code, hence the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "common/math/encoding.h"
#include "kernels/step/optimizer.h"

namespace tributary {

// A node's encoded gradient, and its number of samples; or the sum of several nodes', which are a subtree of the sum's
// tree (kernels/tree_sum.h).
struct PushFrame {
  const std::byte* bytes = nullptr;
  std::uint64_t weight = 1;
  std::uint32_t nodes = 1;
};

struct FusedArgs {
  std::size_t elements = 0;
  std::span<const PushFrame> frames;  // in node order, together of kMaxSumInputs nodes; summed as tree_sum.h defines
  const Encoding* push = nullptr;     // encoding of the frames
  float scale = 1.0f;                 // 1 / total weight: multiplies the sum before the step
  const float* param_in = nullptr;    // in place (== param_out) or disjoint
  float* param_out = nullptr;
  const float* state_in[kernels::kMaxSlots] = {};
  float* state_out[kernels::kMaxSlots] = {};
  const Encoding* pull = nullptr;  // encodes param_out into `answer`, unless answer is null
  std::byte* answer = nullptr;
  const float* estimate_in = nullptr;  // pull->is_delta(): the receivers' estimate, before ...
  float* estimate_out = nullptr;       // ... and after this answer; in place or disjoint
};

// Elements of a chunk, up to `end`, that are stepped with the same scalars: those of one group's tensors.
struct StepRun {
  std::size_t end = 0;
  kernels::StepScalars scalars;
};

// Elements handled at a time. The frames are summed in bursts of this many, short enough that the prefetchers keep all
// the streams of frames, state and parameters in view: with 2 and 8 frames 128 is 1.5 times faster than 1024, with one
// it is the same.
inline constexpr std::size_t kFusedBlock = 128;

// A delta encoding's blocks are larger, and so is then this.
inline constexpr std::size_t kMaxFusedBlock = 256;

// Computes only the sum that fused_step() would step with, before the scale. Reads elements, frames and push of `args`.
void fused_sum(const FusedArgs& args, float* out);

// REQUIRES: the runs' ends ascend, the last is args.elements.
void fused_step(const kernels::Optimizer& optimizer, std::span<const StepRun> runs, const FusedArgs& args);
// Steps all elements with the same scalars.
void fused_step(const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars, const FusedArgs& args);

}  // namespace tributary

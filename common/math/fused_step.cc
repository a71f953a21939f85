#include "common/math/fused_step.h"

#include <algorithm>
#include <array>
#include <bit>

#include "common/base/assert.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

constexpr std::size_t kGroup = 8;    // frames that are decoded side by side and summed in one loop
constexpr std::size_t kLevels = 10;  // each level of scratch halves the nodes that are left
static_assert(kernels::kMaxSumInputs <= std::size_t{1} << kLevels);

using Block = std::array<float, kMaxFusedBlock>;

struct Scratch {
  alignas(64) std::array<Block, kGroup> decoded;
  alignas(64) std::array<Block, kLevels> partial;
};

// Returns values [first, first+count) of a frame of `elements`: where they lie, or decoded into `scratch`. (With the
// weight 1 a push decodes as an answer does.)
const float* values_of(const Encoding& encoding, const PushFrame& frame, std::size_t elements, std::size_t first,
                       std::size_t count, Block& scratch) {
  if (const float* values = encoding.as_fp32(frame.bytes)) return values + first;
  decode_push(encoding, frame.bytes, frame.weight, elements, first, count, scratch.data());
  return scratch.data();
}

std::size_t nodes_in(std::span<const PushFrame> frames) {
  std::size_t nodes = 0;
  for (const PushFrame& frame : frames) nodes += frame.nodes;
  return nodes;
}

// Tree sum of one block over the frames of a subtree with so many nodes. As in kernels/tree_sum.cc, the left subtree is
// the largest power of two below the number of leaves; here the leaves may have to be decoded, so at most a group of
// them exists at a time.
void sum_frames(std::span<const PushFrame> frames, std::size_t nodes, const FusedArgs& args, std::size_t first,
                std::size_t count, float* out, Scratch& scratch, std::size_t level) {
  std::array<const float*, kGroup> inputs;
  const bool leaves = nodes == frames.size();
  if (frames.size() == 1 || (leaves && frames.size() <= kGroup)) {
    for (std::size_t k = 0; k < frames.size(); ++k) {
      inputs[k] = values_of(*args.push, frames[k], args.elements, first, count, scratch.decoded[k]);
    }
    return kernels::tree_sum({inputs.data(), frames.size()}, count, out);
  }
  const std::size_t left = std::bit_floor(nodes - 1);
  std::size_t split = left;
  if (!leaves) {
    split = 0;
    std::size_t there = 0;
    while (there < left) there += frames[split++].nodes;
    TRIB_ASSERT(there == left);
  }
  float* right_sum = scratch.partial[level].data();
  sum_frames(frames.first(split), left, args, first, count, out, scratch, level + 1);
  sum_frames(frames.subspan(split), nodes - left, args, first, count, right_sum, scratch, level + 1);
  inputs[0] = out;
  inputs[1] = right_sum;
  kernels::tree_sum({inputs.data(), 2}, count, out);
}

}  // namespace

void fused_sum(const FusedArgs& args, float* out) {
  const std::size_t nodes = nodes_in(args.frames);
  TRIB_ASSERT(args.push != nullptr && !args.frames.empty() && nodes <= kernels::kMaxSumInputs);
  Scratch scratch;
  for (std::size_t first = 0; first < args.elements; first += kFusedBlock) {
    const std::size_t count = std::min(kFusedBlock, args.elements - first);
    sum_frames(args.frames, nodes, args, first, count, out + first, scratch, 0);
  }
}

void fused_step(const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars, const FusedArgs& args) {
  const StepRun all{args.elements, scalars};
  fused_step(optimizer, {&all, 1}, args);
}

void fused_step(const kernels::Optimizer& optimizer, std::span<const StepRun> runs, const FusedArgs& args) {
  TRIB_ASSERT(!runs.empty() && runs.back().end == args.elements);
  TRIB_ASSERT(args.push != nullptr && (args.answer == nullptr || args.pull != nullptr));
  const std::size_t nodes = nodes_in(args.frames);
  TRIB_ASSERT(!args.frames.empty() && nodes <= kernels::kMaxSumInputs);
  const int slots = optimizer.slots();
  TRIB_ASSERT(!args.answer || args.pull->is_delta() == (args.estimate_out != nullptr));
  const std::size_t step = args.answer ? std::max(kFusedBlock, args.pull->granularity()) : kFusedBlock;
  TRIB_ASSERT(step <= kMaxFusedBlock);
  Scratch scratch;  // on the stack, about 18 KiB
  alignas(64) Block sum;

  for (std::size_t first = 0; first < args.elements; first += step) {
    kernels::BlockArgs block;
    block.count = std::min(step, args.elements - first);
    block.grad_scale = args.scale;
    block.param_in = args.param_in + first;
    block.param_out = args.param_out + first;
    for (int slot = 0; slot < slots; ++slot) {
      block.state_in[slot] = args.state_in[slot] + first;
      block.state_out[slot] = args.state_out[slot] + first;
    }
    if (args.frames.size() == 1) {
      block.grad = values_of(*args.push, args.frames[0], args.elements, first, block.count, sum);
    } else {
      sum_frames(args.frames, nodes, args, first, block.count, sum.data(), scratch, 0);
      block.grad = sum.data();
    }
    // A block is one group's, but where the groups of two tensors meet.
    std::size_t done = 0;
    for (; runs.front().end < first + block.count; runs = runs.subspan(1)) {
      const std::size_t end = runs.front().end - std::min(runs.front().end, first);
      if (end > done) optimizer.step(runs.front().scalars, block.part(done, end));
      done = end;
    }
    if (done == 0) {
      optimizer.step(runs.front().scalars, block);
    } else {
      optimizer.step(runs.front().scalars, block.part(done, block.count));
    }
    if (!args.answer) continue;
    float* estimate = args.estimate_out == nullptr ? nullptr : args.estimate_out + first;
    if (args.estimate_out != args.estimate_in) std::copy_n(args.estimate_in + first, block.count, estimate);
    args.pull->encode_update(block.param_out, args.elements, first, block.count, estimate, args.answer);
  }
}

}  // namespace tributary

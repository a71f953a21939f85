// Optimizers whose step has a length of its own per tensor (kernels/lamb.cc): the norms of a tensor's parts, found
// chunk by chunk, and the ratio that they make. Sums have the fixed tree of common/gate_rules.h, so that a tensor's
// ratio has the same bits however it is cut and wherever its chunks are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/layout.h"
#include "common/messages.h"
#include "kernels/optimizer.h"

namespace tributary {

// A tensor's part of a chunk: elements [begin, the next part's begin) of it, with what pads the tensor.
struct LayerPart {
  std::uint32_t tensor = 0;
  std::size_t begin = 0;
};
// Of every tensor that the chunk has something of, ascending.
std::vector<LayerPart> layer_parts(const Layout& layout, ChunkIndex chunk);

struct LayerArgs {
  ChunkIndex chunk;
  std::size_t elements = 0;
  std::span<const LayerPart> parts;
  const float* sum = nullptr;
  float scale = 1.0f;  // of it
  const float* params = nullptr;
  const float* state[kernels::kMaxSlots] = {};
};
// Appends the sums of squares of each part's parameters, and of what a step would move them along.
void add_layer_norms(const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars, const LayerArgs& args,
                     std::vector<TensorNorms>& norms);

// By tensor: ||parameters|| / ||update||, or 1 where one of them is 0. norms: of all parts, in any order.
// REQUIRES: every norms[i].tensor < tensors.
std::vector<float> trust_ratios(std::size_t tensors, std::vector<TensorNorms> norms);

}  // namespace tributary

// Tree-ordered n-way sum.
//
// The tree (the whole system's definition of "the sum over ranks"): leaves are ranks 0..n-1; at each level neighbours
// (2i, 2i+1) are added, an odd last one moves up unchanged, until one is left. So n = 2 -> a0+a1; n = 3 -> (a0+a1)+a2;
// n = 5 -> ((a0+a1)+(a2+a3))+a4. For g = 2^k ranks per node the node's sum is a subtree, therefore reducing inside
// nodes first and over nodes afterwards gives the same bits as one flat sum, in every arrival order.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda_stream.h"

namespace tributary::kernels {

inline constexpr std::size_t kMaxSumInputs = 1024;

// out[i] = tree sum over inputs[k][i], for i < count. out may equal inputs[0]; it must not overlap the others. No
// alignment is required beyond that of float. 1 <= inputs.size() <= kMaxSumInputs.
// Deterministic on every instruction set.
void tree_sum(std::span<const float* const> inputs, std::size_t count, float* out);

// values[i] *= scale.
void scale(float* values, std::size_t count, float factor);

namespace cuda {  // rules: kernels/cuda_stream.h

inline constexpr int kMaxFusedInputs = 8;

// Arrays of the ranks of one device that an encoder tree-sums in registers while it reads them, so that summing and
// encoding are one pass over memory. For more of them, tree_sum() comes first.
struct SumInputs {
  const float* at[kMaxFusedInputs] = {};
  int count = 0;  // 1 to kMaxFusedInputs

  SumInputs() = default;
  SumInputs(const float* one) : at{one}, count(1) {}  // NOLINT(google-explicit-constructor): most have one
  explicit SumInputs(std::span<const float* const> inputs) : count(static_cast<int>(inputs.size())) {
    for (int k = 0; k < count && k < kMaxFusedInputs; ++k) at[k] = inputs[static_cast<std::size_t>(k)];
  }
};

void tree_sum(std::span<const float* const> inputs, std::size_t count, float* out, Stream stream);
void scale(float* values, std::size_t count, float factor, Stream stream);

}  // namespace cuda

}  // namespace tributary::kernels

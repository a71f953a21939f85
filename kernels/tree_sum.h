// Tree-ordered n-way sum.
//
// The tree (the whole system's definition of "the sum over ranks"): leaves are ranks 0..n-1; at each level neighbours
// (2i, 2i+1) are added, an odd last one moves up unchanged, until one is left. So n = 2 -> a0+a1; n = 3 -> (a0+a1)+a2;
// n = 5 -> ((a0+a1)+(a2+a3))+a4. For g = 2^k ranks per node the node's sum is a subtree, therefore reducing inside
// nodes first and over nodes afterwards gives the same bits as one flat sum, in every arrival order.
#pragma once

#include <cstddef>
#include <span>

namespace tributary::kernels {

inline constexpr std::size_t kMaxSumInputs = 1024;

// out[i] = tree sum over inputs[k][i], for i < count. out may equal inputs[0]; it must not overlap the others. No
// alignment is required beyond that of float. 1 <= inputs.size() <= kMaxSumInputs.
// Deterministic on every instruction set.
void tree_sum(std::span<const float* const> inputs, std::size_t count, float* out);

// values[i] *= scale.
void scale(float* values, std::size_t count, float factor);

}  // namespace tributary::kernels

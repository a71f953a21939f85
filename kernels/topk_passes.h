// The passes of topk_select() over a residual, in their order. Others may write the residual meanwhile, so that each
// pass may see other values: a pass trusts nothing of earlier ones beyond its arguments, and stays within its arrays
// whatever it reads. If nothing writes the residual, the passes together are topk_select().
#pragma once

#include <cstddef>
#include <cstdint>

namespace tributary::kernels::topk_passes {

// Place of the k-th largest: its digit, and how many more are wanted of that digit once all larger ones are taken.
struct Place {
  std::uint32_t digit = 0;
  std::size_t wanted = 0;
};

// Keys above are sent, and the first `wanted` of those on it.
struct Threshold {
  std::int32_t key = 0;
  std::size_t wanted = 0;
};

Place find_step(const float* residual, std::size_t elements, std::size_t k);
// scratch: `elements` words.
Threshold find_threshold(const float* residual, std::size_t elements, Place step, std::uint32_t* scratch);
// counts: topk_groups(elements); values, offsets: k. Returns how many of these were written.
std::size_t take(float* residual, std::size_t elements, std::size_t k, Threshold threshold, std::uint32_t* counts,
                 float* values, std::uint16_t* offsets);

}  // namespace tributary::kernels::topk_passes

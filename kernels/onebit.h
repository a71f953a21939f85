// 1-bit sign compression with error feedback: 4096 values share one fp32 scale, their mean magnitude (Karimireddy et
// al. 2019, "Error feedback fixes SignSGD").
//
// A block of n values x: scale = (sum |x|) / n; D = scale if x >= 0 (so also for both zeros), else -scale. x is the
// value plus the residual of earlier rounds, x - D the new residual (rounded: to the last bit of the larger of the
// two). If the sum is not finite (a NaN, an infinity or an overflow): scale NaN, D = NaN, residual 0, all bits 0.
//
// The sum is one of floats and has one order everywhere (kernels/lane_sum.h), hence the same bits on CPUs and GPUs, but
// for the bits of a NaN. A short last block divides by its own n.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tree_sum.h"

namespace tributary::kernels {

inline constexpr std::size_t kOneBitBlock = 4096;

constexpr std::size_t onebit_blocks(std::size_t count) {
  return (count + kOneBitBlock - 1) / kOneBitBlock;
}

// x = values[i] + residual[i]; residual[i] becomes x - D. scales: onebit_blocks(count). bits: (count + 7) / 8 bytes,
// value i in bit i % 8 of byte i / 8, 1 = negative; spare bits are 0. No array may overlap another; none is null.
void onebit_encode(const float* values, std::size_t count, float* residual, float* scales, std::uint8_t* bits);

// Values [first, first+count); first is a multiple of 8. scales may lie at any address.
void onebit_decode(const std::byte* scales, const std::uint8_t* bits, std::size_t first, std::size_t count, float* out);

namespace cuda {  // rules: kernels/cuda_stream.h

// values: the tree sum of the inputs.
void onebit_encode(const SumInputs& values, std::size_t count, Residual residual, float* scales, std::uint8_t* bits,
                   Stream stream);
// A whole array.
void onebit_decode(const float* scales, const std::uint8_t* bits, std::size_t count, float* out, Stream stream);

}  // namespace cuda

}  // namespace tributary::kernels

// int8 block quantization: 256 values share one fp32 scale, the largest magnitude / 127.
//
// A block of x: a = max |x|, scale = a / 127, q = round_to_even(x * (127 / a)), and the receiver gets D(q) = q * scale.
// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): x is the value plus the residual of earlier rounds, and
// x - D(q) is the new residual. |x - D| <= scale / 2 except for rounding. By Sterbenz's lemma the difference is exact:
// residual and sent value add up to x. Only where x is within rounding of half a scale they do so to the last bit of x.
//
//   a < kInt8Smallest                       scale 0, D = 0: the whole block stays in the residual
//                                           (127 / a would overflow)
//   a NaN, infinite or >= kInt8Overflow     scale NaN, q = 0, D = NaN, residual 0: the receiver must see it, the next
//                                           round need not (127 * scale could overflow, and does for a = FLT_MAX)
//
// Element-wise but for the maximum, which has no order: the same bits on CPUs of every kind and on GPUs, but for the
// bits of a NaN. No contraction: q * scale is rounded before it is subtracted or added.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tree_sum.h"

namespace tributary::kernels {

inline constexpr std::size_t kInt8Block = 256;
inline constexpr float kInt8Smallest = 0x1p-100f;
inline constexpr float kInt8Overflow = 0x1p127f;

constexpr std::size_t int8_blocks(std::size_t count) {
  return (count + kInt8Block - 1) / kInt8Block;
}

// x = values[i] + residual[i]; residual[i] becomes x - D. residual may be null: x = values[i], and the error is
// dropped. scales: int8_blocks(count) floats; q: count. A short last block has its own scale.
// No array may overlap another; none needs more than its type's alignment.
void int8_encode(const float* values, std::size_t count, float* residual, float* scales, std::int8_t* q);

// x = target[i] - estimate[i]; estimate[i] += D. For int8-delta: both sides add the same D to the same estimate.
void int8_encode_delta(const float* target, std::size_t count, float* estimate, float* scales, std::int8_t* q);

// Values [first, first+count) of an encoded array: scales and q are those of the whole array; scales is a byte pointer
// because received frames may lie at any address. Any bytes can be decoded; a D that overflows is infinite.
void int8_decode(const std::byte* scales, const std::int8_t* q, std::size_t first, std::size_t count, float* out);
// out[i] += D.
void int8_decode_add(const std::byte* scales, const std::int8_t* q, std::size_t first, std::size_t count, float* out);

namespace cuda {  // rules: kernels/cuda_stream.h

// values: the tree sum of the inputs.
void int8_encode(const SumInputs& values, std::size_t count, Residual residual, float* scales, std::int8_t* q,
                 Stream stream);
void int8_encode_delta(const float* target, std::size_t count, float* estimate, float* scales, std::int8_t* q,
                       Stream stream);
// Whole arrays.
void int8_decode(const float* scales, const std::int8_t* q, std::size_t count, float* out, Stream stream);
void int8_decode_add(const float* scales, const std::int8_t* q, std::size_t count, float* out, Stream stream);

}  // namespace cuda

}  // namespace tributary::kernels

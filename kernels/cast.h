// fp32 <-> bf16 and fp16 casts, round to nearest even; NaN stays NaN (quietened),
// overflow goes to infinity as IEEE 754 has it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tree_sum.h"

namespace tributary::kernels {

void fp32_to_bf16(const float* in, std::size_t count, std::uint16_t* out);
void bf16_to_fp32(const std::uint16_t* in, std::size_t count, float* out);
void fp32_to_fp16(const float* in, std::size_t count, std::uint16_t* out);
void fp16_to_fp32(const std::uint16_t* in, std::size_t count, float* out);

namespace cuda {  // rules: kernels/cuda_stream.h

void fp32_to_bf16(const SumInputs& in, std::size_t count, std::uint16_t* out, Stream stream);
void bf16_to_fp32(const std::uint16_t* in, std::size_t count, float* out, Stream stream);
// scale: of every value, before the cast.
void fp32_to_fp16(const SumInputs& in, std::size_t count, float scale, std::uint16_t* out, Stream stream);
void fp16_to_fp32(const std::uint16_t* in, std::size_t count, float* out, Stream stream);

}  // namespace cuda

}  // namespace tributary::kernels

// Facts of a gradient that a round gate needs before the gradient is applied: its squared norm and whether it has NaN
// or infinities. They are found while it is cast for the wire anyway, so that they cost no pass of their own.
//
// Squares are added in double, in the order of kernels/lane_sum.h: the same bits on CPUs and GPUs. A square of a finite
// float is finite in double, and so is the sum of all that fit into memory: sum_squares is finite exactly if non_finite
// is 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/lane_sum.h"
#include "kernels/tree_sum.h"

namespace tributary::kernels {

struct GradientFacts {
  double sum_squares = 0.0;
  std::uint64_t non_finite = 0;  // how many values are NaN or infinite
};

GradientFacts gradient_facts(const float* in, std::size_t count);
// Casts as in kernels/cast.h; returns the facts of `in`.
GradientFacts fp32_to_bf16_facts(const float* in, std::size_t count, std::uint16_t* out);
GradientFacts fp32_to_fp16_facts(const float* in, std::size_t count, std::uint16_t* out);

namespace cuda {  // rules: kernels/cuda_stream.h

// Elements of scratch that the following functions need: the facts of each block.
constexpr std::size_t facts_scratch_elements(std::size_t count) {
  return (count + kSumBlock - 1) / kSumBlock;
}

// facts: one, in device memory, as scratch is; both at multiples of 16 bytes.
void gradient_facts(const SumInputs& in, std::size_t count, GradientFacts* facts, GradientFacts* scratch,
                    Stream stream);
void fp32_to_bf16_facts(const SumInputs& in, std::size_t count, std::uint16_t* out, GradientFacts* facts,
                        GradientFacts* scratch, Stream stream);
void fp32_to_fp16_facts(const SumInputs& in, std::size_t count, std::uint16_t* out, GradientFacts* facts,
                        GradientFacts* scratch, Stream stream);

}  // namespace cuda

}  // namespace tributary::kernels

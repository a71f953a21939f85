#include "kernels/facts.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cast.h"
#include "kernels/dispatch.h"
#include "kernels/lane_sum.h"

namespace tributary::kernels {
namespace {

// Exact: 24 bits times 24 bits fit into a double's 53.
TRIBUTARY_INLINE double square(float value) {
  const double wide = value;
  return wide * wide;
}

TRIBUTARY_INLINE std::uint32_t not_finite(float value) {
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  return (std::bit_cast<std::uint32_t>(value) & kInfinity) == kInfinity ? 1u : 0u;
}

// At most kSumBlock values.
TRIBUTARY_MULTIVERSION
double block_sum_squares(const float* in, std::size_t count) {
  alignas(64) double lanes[kSumLanes];
  std::fill_n(lanes, kSumLanes, 0.0);
  for (std::size_t row = 0; row < count; row += kSumLanes) {
    const std::size_t here = std::min(kSumLanes, count - row);
    for (std::size_t j = 0; j < here; ++j) lanes[j] += square(in[row + j]);
  }
  return fold_lanes(lanes);
}

// Called only if the sum is not finite: then, and only then, is there something to count.
TRIBUTARY_MULTIVERSION
std::uint32_t block_non_finite(const float* in, std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) found += not_finite(in[i]);
  return found;
}

TRIBUTARY_MULTIVERSION
double fold_total(double* lanes) {
  return fold_lanes(lanes);
}

GradientFacts block_facts(const float* in, std::size_t count) {
  const double sum = block_sum_squares(in, count);
  return {sum, std::isfinite(sum) ? 0u : block_non_finite(in, count)};
}

// Block by block, so that `also` and the facts read a block from the first-level cache.
template <class Also>
GradientFacts facts_of(const float* in, std::size_t count, Also also) {
  if (count <= kSumBlock) {  // the same value, without the lanes of a total
    also(std::size_t{0}, count);
    return block_facts(in, count);
  }
  GradientFacts total;
  alignas(64) double lanes[kSumLanes] = {};
  std::size_t lane = 0;
  for (std::size_t first = 0; first < count; first += kSumBlock) {
    const std::size_t here = std::min(kSumBlock, count - first);
    also(first, here);
    const GradientFacts block = block_facts(in + first, here);
    lanes[lane] += block.sum_squares;
    lane = (lane + 1) % kSumLanes;
    total.non_finite += block.non_finite;
  }
  total.sum_squares = fold_total(lanes);
  return total;
}

}  // namespace

GradientFacts gradient_facts(const float* in, std::size_t count) {
  return facts_of(in, count, [](std::size_t, std::size_t) {});
}
GradientFacts fp32_to_bf16_facts(const float* in, std::size_t count, std::uint16_t* out) {
  return facts_of(in, count, [&](std::size_t first, std::size_t here) { fp32_to_bf16(in + first, here, out + first); });
}
GradientFacts fp32_to_fp16_facts(const float* in, std::size_t count, std::uint16_t* out) {
  return facts_of(in, count, [&](std::size_t first, std::size_t here) { fp32_to_fp16(in + first, here, out + first); });
}

}  // namespace tributary::kernels

// Two launches: the facts of each block of 4096 elements, cast on the way if wanted; then the lane sum of the blocks'
// sums (16 bytes for each 16 KiB) by one block of threads.
#include "kernels/device.cuh"
#include "kernels/facts.h"
#include "kernels/half_bits.h"

namespace tributary::kernels::cuda {
namespace {

enum class Cast { kNone, kBf16, kFp16 };

template <int kMost, Cast kCast>
__global__ void __launch_bounds__(kThreads)
    block_facts(const SumInputs inputs, std::size_t count, std::uint16_t* out, GradientFacts* facts) {
  TRIBUTARY_SHARED(double[kSumLanes], shared);
  TRIBUTARY_SHARED(unsigned, non_finite);
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Floats values[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) values[r] = load_sum<kMost, whole>(inputs, first + block_place(r), count);
    double lanes[4] = {};
    unsigned mine = 0;
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      [[maybe_unused]] Halves halves;
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const float value = values[r].v[c];
        const double wide = value;
        lanes[c] += wide * wide;  // exact: 24 bits times 24 bits fit into 53
        mine += magnitude_bits(value) >= kFp32Infinity ? 1 : 0;
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
        if constexpr (kCast == Cast::kBf16) halves.v[c] = bf16_of(bits);
        if constexpr (kCast == Cast::kFp16) halves.v[c] = fp16_of(bits);
      }
      if constexpr (kCast != Cast::kNone) store<whole>(out, first + block_place(r), count, halves);
    }
    if (threadIdx.x == 0) non_finite = 0;
    const double sum = fold_block(lanes, shared);
    if (mine != 0) atomicAdd(&non_finite, mine);  // rare
    __syncthreads();
    if (threadIdx.x == 0) facts[first / kTile] = {sum, non_finite};
  });
}

// By one block.
__global__ void __launch_bounds__(kThreads)
    total_facts(const GradientFacts* blocks, std::size_t count, GradientFacts* total) {
  TRIBUTARY_SHARED(double[kSumLanes], shared);
  TRIBUTARY_SHARED(unsigned long long, non_finite);
  if (threadIdx.x == 0) non_finite = 0;
  double lanes[4] = {};
  unsigned long long mine = 0;
  TRIBUTARY_UNROLL_4
  for (std::size_t first = 4 * threadIdx.x; first < count; first += kSumLanes) {
    TRIBUTARY_UNROLL
    for (int c = 0; c < 4; ++c) {
      if (first + c >= count) continue;
      const GradientFacts block = blocks[first + c];
      lanes[c] += block.sum_squares;
      mine += block.non_finite;
    }
  }
  const double sum = fold_block(lanes, shared);
  if (mine != 0) atomicAdd(&non_finite, mine);
  __syncthreads();
  if (threadIdx.x == 0) *total = {sum, non_finite};
}

template <Cast kCast>
void launch_facts(const SumInputs& in, std::size_t count, std::uint16_t* out, GradientFacts* facts,
                  GradientFacts* scratch, Stream stream) {
  with_most_inputs(
      in, [&](auto most) { launch(stream, blocks_for(count), block_facts<most, kCast>, in, count, out, scratch); });
  launch(stream, 1, total_facts, scratch, tiles_of(count), facts);
}

}  // namespace

void gradient_facts(const SumInputs& in, std::size_t count, GradientFacts* facts, GradientFacts* scratch,
                    Stream stream) {
  launch_facts<Cast::kNone>(in, count, nullptr, facts, scratch, stream);
}
void fp32_to_bf16_facts(const SumInputs& in, std::size_t count, std::uint16_t* out, GradientFacts* facts,
                        GradientFacts* scratch, Stream stream) {
  launch_facts<Cast::kBf16>(in, count, out, facts, scratch, stream);
}
void fp32_to_fp16_facts(const SumInputs& in, std::size_t count, std::uint16_t* out, GradientFacts* facts,
                        GradientFacts* scratch, Stream stream) {
  launch_facts<Cast::kFp16>(in, count, out, facts, scratch, stream);
}

}  // namespace tributary::kernels::cuda

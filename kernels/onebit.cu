// A tile is one block of 4096 values, which a block of threads holds in registers while its mean is found: one pass.
#include <cmath>

#include "kernels/device.cuh"
#include "kernels/half_bits.h"
#include "kernels/onebit.h"

namespace tributary::kernels::cuda {
namespace {

static_assert(kOneBitBlock == kTile);
constexpr unsigned kWordsOfTile = kTile / 32;
constexpr std::uint32_t kSign = 0x80000000u;

// The signs that eight lanes hold, four each, as one word in which lane l's are the bits 4 l .. 4 l + 3. In all of
// them.
__device__ __forceinline__ std::uint32_t gather_signs(const Floats& x) {
  std::uint32_t word = 0;
  TRIBUTARY_UNROLL
  for (int c = 0; c < 4; ++c) word |= (x.v[c] < 0.0f ? 1u : 0u) << c;
  word <<= 4 * (threadIdx.x % 8);
  TRIBUTARY_UNROLL
  for (int distance = 1; distance < 8; distance *= 2) word |= __shfl_xor_sync(kAllLanes, word, distance);
  return word;
}

// Bytes of bits of the tile that begins at `first`.
__device__ __forceinline__ void store_bits(const std::uint32_t (&words)[kWordsOfTile], std::size_t first,
                                           std::size_t count, std::uint8_t* bits) {
  if (count - first >= kTile) {
    struct alignas(16) Words {
      std::uint32_t v[4];
    };
    if (threadIdx.x < kWordsOfTile / 4) {
      const unsigned at = 4 * threadIdx.x;
      reinterpret_cast<Words*>(bits +
                               first / 8)[threadIdx.x] = {{words[at], words[at + 1], words[at + 2], words[at + 3]}};
    }
    return;
  }
  for (std::size_t byte = threadIdx.x; byte < (count - first + 7) / 8; byte += kThreads) {
    bits[first / 8 + byte] = static_cast<std::uint8_t>(words[byte / 4] >> (8 * (byte % 4)));
  }
}

template <int kMost>
__global__ void __launch_bounds__(kThreads)
    encode(const SumInputs inputs, std::size_t count, const Residual residual, float* scales, std::uint8_t* bits) {
  TRIBUTARY_SHARED(float[kSumLanes], shared);
  TRIBUTARY_SHARED(std::uint32_t[kWordsOfTile], words);
  TRIBUTARY_SHARED(float, scale_of_all);
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Floats x[kVectors], old[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      x[r] = load_sum<kMost, whole>(inputs, first + block_place(r), count);
      old[r] = load<whole>(residual.before, first + block_place(r), count);
    }
    float lanes[4] = {};
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      x[r] = x[r] + old[r];
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) lanes[c] += std::fabs(x[r].v[c]);
    }
    const float sum = fold_block(lanes, shared);
    const bool finite_sum = magnitude_bits(sum) < kFp32Infinity;
    if (threadIdx.x == 0) {
      const std::size_t here = count - first < kTile ? count - first : kTile;
      scale_of_all = finite_sum ? sum / static_cast<float>(here) : std::bit_cast<float>(0x7fc00000u);
      scales[first / kTile] = scale_of_all;
    }
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::uint32_t word = gather_signs(x[r]);
      if (threadIdx.x % 8 == 0) words[block_place(r) / 32] = word;
    }
    __syncthreads();
    const float scale = scale_of_all;
    const bool lost = magnitude_bits(scale) > kFp32Infinity;
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      TRIBUTARY_UNROLL
      for (float& value : x[r].v) value = lost ? 0.0f : value - (value < 0.0f ? -scale : scale);
      store<whole>(residual.after, first + block_place(r), count, x[r]);
    }
    if (lost) {  // the same for all threads
      if (threadIdx.x < kWordsOfTile) words[threadIdx.x] = 0;
      __syncthreads();
    }
    store_bits(words, first, count, bits);
  });
}

__global__ void __launch_bounds__(kThreads)
    decode(const float* scales, const std::uint8_t* bits, std::size_t count, float* out) {
  for_each_tile(count, [&](auto whole, std::size_t first) {
    const std::uint32_t scale = std::bit_cast<std::uint32_t>(scales[first / kTile]);
    std::uint32_t byte[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::size_t i = first + block_place(r);
      byte[r] = whole || i < count ? bits[i / 8] : 0u;
    }
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::uint32_t four = byte[r] >> (4 * (threadIdx.x % 2));
      Floats values;
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        values.v[c] = std::bit_cast<float>(((four >> c) % 2 != 0 ? kSign : 0u) ^ scale);
      }
      store<whole>(out, first + block_place(r), count, values);
    }
  });
}

}  // namespace

void onebit_encode(const SumInputs& values, std::size_t count, Residual residual, float* scales, std::uint8_t* bits,
                   Stream stream) {
  with_most_inputs(values, [&](auto most) {
    launch(stream, blocks_for(count), encode<most>, values, count, residual, scales, bits);
  });
}
void onebit_decode(const float* scales, const std::uint8_t* bits, std::size_t count, float* out, Stream stream) {
  launch(stream, blocks_for(count), decode, scales, bits, count, out);
}

}  // namespace tributary::kernels::cuda

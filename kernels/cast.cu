// A thread's four values are 16 bytes of floats and 8 bytes of halves: so a warp's accesses are contiguous on both
// sides, where 16 bytes of halves would tear the floats' apart.
#include "kernels/cast.h"
#include "kernels/device.cuh"
#include "kernels/half_bits.h"

namespace tributary::kernels::cuda {
namespace {

enum class Half { kBf16, kFp16 };

template <int kMost, Half kHalf>
__global__ void __launch_bounds__(kThreads)
    encode(const SumInputs inputs, std::size_t count, [[maybe_unused]] float scale, std::uint16_t* out) {
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Floats values[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) values[r] = load_sum<kMost, whole>(inputs, first + block_place(r), count);
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      Halves halves;
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const float value = values[r].v[c];
        halves.v[c] = kHalf == Half::kBf16 ? bf16_of(std::bit_cast<std::uint32_t>(value))
                                           : fp16_of(std::bit_cast<std::uint32_t>(value * scale));
      }
      store<whole>(out, first + block_place(r), count, halves);
    }
  });
}

template <Half kHalf>
__global__ void __launch_bounds__(kThreads) decode(const std::uint16_t* in, std::size_t count, float* out) {
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Halves halves[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) halves[r] = load<whole>(in, first + block_place(r), count);
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      Floats values;
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const std::uint16_t half = halves[r].v[c];
        values.v[c] = std::bit_cast<float>(kHalf == Half::kBf16 ? fp32_of_bf16(half) : fp32_of_fp16(half));
      }
      store<whole>(out, first + block_place(r), count, values);
    }
  });
}

template <Half kHalf>
void launch_encode(const SumInputs& in, std::size_t count, float scale, std::uint16_t* out, Stream stream) {
  with_most_inputs(in,
                   [&](auto most) { launch(stream, blocks_for(count), encode<most, kHalf>, in, count, scale, out); });
}

}  // namespace

void fp32_to_bf16(const SumInputs& in, std::size_t count, std::uint16_t* out, Stream stream) {
  launch_encode<Half::kBf16>(in, count, 1.0f, out, stream);
}
void bf16_to_fp32(const std::uint16_t* in, std::size_t count, float* out, Stream stream) {
  launch(stream, blocks_for(count), decode<Half::kBf16>, in, count, out);
}
void fp32_to_fp16(const SumInputs& in, std::size_t count, float scale, std::uint16_t* out, Stream stream) {
  launch_encode<Half::kFp16>(in, count, scale, out, stream);
}
void fp16_to_fp32(const std::uint16_t* in, std::size_t count, float* out, Stream stream) {
  launch(stream, blocks_for(count), decode<Half::kFp16>, in, count, out);
}

}  // namespace tributary::kernels::cuda

// A warp handles two blocks of 256 values at a time, eight values a lane in registers; the maximum is one instruction
// over the warp (redux, sm_80), and nothing is shared between warps.
#include "kernels/device.cuh"
#include "kernels/int8.h"

namespace tributary::kernels::cuda {
namespace {

constexpr int kVectorsOfBlock = kInt8Block / (4 * kWarp);
static_assert(kVectorsOfBlock * 4 * kWarp == kInt8Block && kVectors % kVectorsOfBlock == 0);

enum class Feedback { kNone, kResidual, kEstimate };

struct Quantizer {
  float scale, inverse;
  bool overflows;
};

__device__ __forceinline__ Quantizer quantizer_for(std::uint32_t largest) {
  const float a = std::bit_cast<float>(largest);
  if (!(a < kInt8Overflow)) return {std::bit_cast<float>(0x7fc00000u), 0.0f, true};
  if (!(a >= kInt8Smallest)) return {0.0f, 0.0f, false};
  return {a / 127.0f, 127.0f / a, false};
}

// memory: the residual, or the estimate in place.
template <int kMost, Feedback kFeedback>
__global__ void __launch_bounds__(kThreads)
    encode(const SumInputs inputs, std::size_t count, const Residual memory, float* scales, std::int8_t* q) {
  // As the CPU twin rounds: adding 1.5 * 2^23 puts the unit at the float's last bit.
  constexpr float kToInteger = 0x1.8p23f;
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Floats x[kVectors];
    [[maybe_unused]] Floats old[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      x[r] = load_sum<kMost, whole>(inputs, first + warp_place(r), count);
      if constexpr (kFeedback != Feedback::kNone) old[r] = load<whole>(memory.before, first + warp_place(r), count);
    }
    if constexpr (kFeedback != Feedback::kNone) {
      TRIBUTARY_UNROLL
      for (int r = 0; r < kVectors; ++r) {
        TRIBUTARY_UNROLL
        for (int c = 0; c < 4; ++c) {
          if constexpr (kFeedback == Feedback::kResidual) x[r].v[c] += old[r].v[c];
          if constexpr (kFeedback == Feedback::kEstimate) x[r].v[c] -= old[r].v[c];
        }
      }
    }
    TRIBUTARY_UNROLL
    for (int block = 0; block < kVectors; block += kVectorsOfBlock) {
      std::uint32_t largest = 0;
      TRIBUTARY_UNROLL
      for (int r = block; r < block + kVectorsOfBlock; ++r) {
        TRIBUTARY_UNROLL
        for (float value : x[r].v) largest = std::max(largest, magnitude_bits(value));
      }
      const Quantizer quantizer = quantizer_for(__reduce_max_sync(kAllLanes, largest));
      const std::size_t begin = first + warp_place(block);  // lane 0: of the block
      if (threadIdx.x % kWarp == 0 && begin < count) scales[begin / kInt8Block] = quantizer.scale;
      TRIBUTARY_UNROLL
      for (int r = block; r < block + kVectorsOfBlock; ++r) {
        Bytes quantized;
        [[maybe_unused]] Floats next;
        TRIBUTARY_UNROLL
        for (int c = 0; c < 4; ++c) {
          const float rounded = x[r].v[c] * quantizer.inverse + kToInteger;
          [[maybe_unused]] const float sent =
              quantizer.overflows ? quantizer.scale : (rounded - kToInteger) * quantizer.scale;
          quantized.v[c] =
              quantizer.overflows ? std::int8_t{0} : static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(rounded));
          if constexpr (kFeedback == Feedback::kResidual) next.v[c] = quantizer.overflows ? 0.0f : x[r].v[c] - sent;
          if constexpr (kFeedback == Feedback::kEstimate) next.v[c] = old[r].v[c] + sent;
        }
        store<whole>(q, first + warp_place(r), count, quantized);
        if constexpr (kFeedback != Feedback::kNone) store<whole>(memory.after, first + warp_place(r), count, next);
      }
    }
  });
}

template <bool kAdd>
__global__ void __launch_bounds__(kThreads)
    decode(const float* scales, const std::int8_t* q, std::size_t count, float* out) {
  for_each_tile(count, [&](auto whole, std::size_t first) {
    Bytes quantized[kVectors];
    Floats values[kVectors];
    float scale[kVectors];
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      const std::size_t i = first + block_place(r);
      quantized[r] = load<whole>(q, i, count);
      scale[r] = whole || i < count ? scales[i / kInt8Block] : 0.0f;
      if constexpr (kAdd) values[r] = load<whole>(out, i, count);
    }
    TRIBUTARY_UNROLL
    for (int r = 0; r < kVectors; ++r) {
      TRIBUTARY_UNROLL
      for (int c = 0; c < 4; ++c) {
        const float value = static_cast<float>(quantized[r].v[c]) * scale[r];
        values[r].v[c] = kAdd ? values[r].v[c] + value : value;
      }
      store<whole>(out, first + block_place(r), count, values[r]);
    }
  });
}

template <Feedback kFeedback>
void launch_encode(const SumInputs& values, std::size_t count, Residual memory, float* scales, std::int8_t* q,
                   Stream stream) {
  with_most_inputs(values, [&](auto most) {
    launch(stream, blocks_for(count), encode<most, kFeedback>, values, count, memory, scales, q);
  });
}

}  // namespace

void int8_encode(const SumInputs& values, std::size_t count, Residual residual, float* scales, std::int8_t* q,
                 Stream stream) {
  if (residual.after == nullptr) return launch_encode<Feedback::kNone>(values, count, nullptr, scales, q, stream);
  launch_encode<Feedback::kResidual>(values, count, residual, scales, q, stream);
}
void int8_encode_delta(const float* target, std::size_t count, float* estimate, float* scales, std::int8_t* q,
                       Stream stream) {
  launch(stream, blocks_for(count), encode<1, Feedback::kEstimate>, SumInputs(target), count, Residual(estimate),
         scales, q);
}
void int8_decode(const float* scales, const std::int8_t* q, std::size_t count, float* out, Stream stream) {
  launch(stream, blocks_for(count), decode<false>, scales, q, count, out);
}
void int8_decode_add(const float* scales, const std::int8_t* q, std::size_t count, float* out, Stream stream) {
  launch(stream, blocks_for(count), decode<true>, scales, q, count, out);
}

}  // namespace tributary::kernels::cuda

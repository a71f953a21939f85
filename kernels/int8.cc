// A block is read twice, the second time from a copy of x on the stack that the first-level cache holds: once for the
// largest magnitude, once to quantise.
#include "kernels/int8.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/dispatch.h"

namespace tributary::kernels {
namespace {

// Adding 1.5 * 2^23 puts the unit at the float's last bit, so that the adder rounds to the nearest even integer; the
// low byte of the sum's bits is then that integer. Every instruction set has it, unlike a rounding instruction.
constexpr float kToInteger = 0x1.8p23f;

enum class Feedback { kNone, kResidual, kEstimate };

// memory: the residual or the estimate.
template <Feedback feedback>
TRIBUTARY_INLINE void encode_block(const float* values, std::size_t count, float* memory, float* scale_out,
                                   std::int8_t* q) {
  alignas(64) float x[kInt8Block];
  // Magnitudes compare as integers, and NaN is the largest. Signed, because SSE2 can compare only those.
  std::int32_t largest = 0;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) {
    float value = values[i];
    if constexpr (feedback == Feedback::kResidual) value += memory[i];
    if constexpr (feedback == Feedback::kEstimate) value -= memory[i];
    x[i] = value;
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(value) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float a = std::bit_cast<float>(largest);
  if (!(a < kInt8Overflow)) {
    *scale_out = std::numeric_limits<float>::quiet_NaN();
    std::memset(q, 0, count);
    if constexpr (feedback == Feedback::kResidual) std::fill_n(memory, count, 0.0f);
    if constexpr (feedback == Feedback::kEstimate) {
      for (std::size_t i = 0; i < count; ++i) memory[i] += *scale_out;
    }
    return;
  }
  const bool representable = a >= kInt8Smallest;
  const float scale = representable ? a / 127.0f : 0.0f;
  const float inverse = representable ? 127.0f / a : 0.0f;
  *scale_out = scale;
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) {
    const float rounded = x[i] * inverse + kToInteger;
    q[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(rounded));
    const float sent = (rounded - kToInteger) * scale;
    if constexpr (feedback == Feedback::kResidual) memory[i] = x[i] - sent;
    if constexpr (feedback == Feedback::kEstimate) memory[i] += sent;
  }
}

template <Feedback feedback>
TRIBUTARY_INLINE void encode_blocks(const float* values, std::size_t count, float* memory, float* scales,
                                    std::int8_t* q) {
  for (std::size_t first = 0; first < count; first += kInt8Block) {
    encode_block<feedback>(values + first, std::min(kInt8Block, count - first),
                           feedback == Feedback::kNone ? nullptr : memory + first, scales++, q + first);
  }
}

TRIBUTARY_MULTIVERSION
void encode_plain(const float* values, std::size_t count, float* scales, std::int8_t* q) {
  encode_blocks<Feedback::kNone>(values, count, nullptr, scales, q);
}

TRIBUTARY_MULTIVERSION
void encode_residual(const float* values, std::size_t count, float* residual, float* scales, std::int8_t* q) {
  encode_blocks<Feedback::kResidual>(values, count, residual, scales, q);
}

TRIBUTARY_MULTIVERSION
void encode_estimate(const float* target, std::size_t count, float* estimate, float* scales, std::int8_t* q) {
  encode_blocks<Feedback::kEstimate>(target, count, estimate, scales, q);
}

template <bool add>
TRIBUTARY_INLINE void decode_blocks(const std::byte* scales, const std::int8_t* q, std::size_t first, std::size_t count,
                                    float* out) {
  q += first;
  while (count > 0) {
    float scale;
    std::memcpy(&scale, scales + first / kInt8Block * sizeof(float), sizeof(scale));
    const std::size_t here = std::min(count, kInt8Block - first % kInt8Block);
    TRIBUTARY_ELEMENTWISE
    for (std::size_t i = 0; i < here; ++i) {
      const float value = static_cast<float>(q[i]) * scale;
      out[i] = add ? out[i] + value : value;
    }
    first += here;
    count -= here;
    q += here;
    out += here;
  }
}

TRIBUTARY_MULTIVERSION
void decode_replace(const std::byte* scales, const std::int8_t* q, std::size_t first, std::size_t count, float* out) {
  decode_blocks<false>(scales, q, first, count, out);
}

TRIBUTARY_MULTIVERSION
void decode_add(const std::byte* scales, const std::int8_t* q, std::size_t first, std::size_t count, float* out) {
  decode_blocks<true>(scales, q, first, count, out);
}

}  // namespace

void int8_encode(const float* values, std::size_t count, float* residual, float* scales, std::int8_t* q) {
  if (residual == nullptr) return encode_plain(values, count, scales, q);
  encode_residual(values, count, residual, scales, q);
}
void int8_encode_delta(const float* target, std::size_t count, float* estimate, float* scales, std::int8_t* q) {
  encode_estimate(target, count, estimate, scales, q);
}
void int8_decode(const std::byte* scales, const std::int8_t* q, std::size_t first, std::size_t count, float* out) {
  decode_replace(scales, q, first, count, out);
}
void int8_decode_add(const std::byte* scales, const std::int8_t* q, std::size_t first, std::size_t count, float* out) {
  decode_add(scales, q, first, count, out);
}

}  // namespace tributary::kernels

// The casts of one value, as bit patterns, in integer arithmetic without branches. They vectorise on every instruction
// set, and GPUs run them too, so that no second, intrinsic version has to give the same bits. The results are those of
// x86's F16C instructions (the tests compare them).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/dispatch.h"

namespace tributary::kernels {

inline constexpr std::uint32_t kMagnitude = 0x7fffffffu;  // all but the sign
inline constexpr std::uint32_t kFp32Infinity = 0x7f800000u;
inline constexpr std::uint32_t kFp32Quiet = 0x00400000u;  // top bit of the significand: a NaN that does not signal

TRIBUTARY_INLINE std::uint16_t bf16_of(std::uint32_t bits) {
  const std::uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // ties to even; may carry into infinity
  const std::uint32_t quiet_nan = (bits | kFp32Quiet) >> 16;
  return static_cast<std::uint16_t>((bits & kMagnitude) > kFp32Infinity ? quiet_nan : nearest);
}

TRIBUTARY_INLINE std::uint32_t fp32_of_bf16(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  return (bits & kMagnitude) > kFp32Infinity ? bits | kFp32Quiet : bits;
}

TRIBUTARY_INLINE std::uint16_t fp16_of(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & kMagnitude;
  // Normal halves: move the exponent's bias from 127 to 15 and round the 13 lost bits; a carry past the largest
  // exponent is infinity's pattern.
  const std::uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 puts the half's unit, 2^-24, at the float's last bit, and the adder rounds to nearest even.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  std::uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= (143u << 23) ? 0x7c00u : half;  // 2^16 and more, infinity
  half = magnitude > kFp32Infinity ? quiet_nan : half;
  return static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000u));
}

TRIBUTARY_INLINE std::uint32_t fp32_of_fp16(std::uint16_t half) {
  constexpr std::uint32_t kRebias = 112u << 23;  // exponents count from -15 in a half, from -127 in a float
  const std::uint32_t magnitude = half & 0x7fffu;
  const std::uint32_t normal = (magnitude << 13) + kRebias;
  // Read as if it were normal with exponent -14, a subnormal half has 2^-14 too much; taking that off is exact.
  const float too_much = std::bit_cast<float>(normal + (1u << 23));
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(too_much - 0x1p-14f);
  std::uint32_t bits = magnitude < 0x0400u ? subnormal : normal;
  bits += magnitude < 0x7c00u ? 0u : kRebias;  // infinity, NaN: from the largest half exponent to the largest float one
  bits |= magnitude > 0x7c00u ? kFp32Quiet : 0u;
  return bits | (static_cast<std::uint32_t>(half & 0x8000u) << 16);
}

}  // namespace tributary::kernels

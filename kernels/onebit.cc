#include "kernels/onebit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/bit_pack.h"
#include "kernels/dispatch.h"
#include "kernels/lane_sum.h"

namespace tributary::kernels {
namespace {

static_assert(kOneBitBlock == kSumBlock);
constexpr std::uint32_t kSign = 0x80000000u;

// residual[i] = values[i] + residual[i]; returns the sum of magnitudes in the order of lane_sum.h.
TRIBUTARY_INLINE float add_and_sum(const float* values, std::size_t count, float* residual) {
  alignas(64) float lanes[kSumLanes];
  std::fill_n(lanes, kSumLanes, 0.0f);
  for (std::size_t row = 0; row < count; row += kSumLanes) {
    const std::size_t here = std::min(kSumLanes, count - row);
    TRIBUTARY_ELEMENTWISE
    for (std::size_t j = 0; j < here; ++j) {
      const float x = values[row + j] + residual[row + j];
      residual[row + j] = x;
      lanes[j] += std::fabs(x);
    }
  }
  return fold_lanes(lanes);
}

// Signs of x = residual[0 .. count), and the new residual.
TRIBUTARY_INLINE void take_signs(std::size_t count, float scale, float* residual, std::uint8_t* bits) {
  constexpr std::size_t kPart = 512;
  alignas(64) std::uint8_t negative[kPart];
  for (std::size_t first = 0; first < count; first += kPart) {
    const std::size_t here = std::min(kPart, count - first);
    if (here < kPart) std::memset(negative, 0, sizeof(negative));
    float* x = residual + first;
    TRIBUTARY_ELEMENTWISE
    for (std::size_t i = 0; i < here; ++i) {
      const bool below = x[i] < 0.0f;
      negative[i] = below;
      x[i] -= below ? -scale : scale;
    }
    std::uint8_t* out = bits + first / 8;
    for (std::size_t byte = 0; byte < (here + 7) / 8; ++byte) out[byte] = pack_flags(negative + 8 * byte);
  }
}

TRIBUTARY_MULTIVERSION
void encode(const float* values, std::size_t count, float* residual, float* scales, std::uint8_t* bits) {
  for (std::size_t first = 0; first < count; first += kOneBitBlock) {
    const std::size_t here = std::min(kOneBitBlock, count - first);
    const float sum = add_and_sum(values + first, here, residual + first);
    if (std::isfinite(sum)) {
      const float scale = sum / static_cast<float>(here);
      *scales++ = scale;
      take_signs(here, scale, residual + first, bits + first / 8);
    } else {
      *scales++ = std::numeric_limits<float>::quiet_NaN();
      std::fill_n(residual + first, here, 0.0f);
      std::memset(bits + first / 8, 0, (here + 7) / 8);
    }
  }
}

// Sign masks of the eight values of each byte. A table (8 KiB), because g++ makes scalar code of any computation.
constexpr auto kSigns = [] {
  std::array<std::array<std::uint32_t, 8>, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (std::uint32_t bit = 0; bit < 8; ++bit) table[byte][bit] = (byte >> bit & 1u) != 0 ? kSign : 0u;
  }
  return table;
}();

TRIBUTARY_INLINE void decode_byte(std::uint8_t byte, std::uint32_t scale, float* out, std::size_t count) {
  std::uint32_t eight[8];
  for (std::size_t j = 0; j < 8; ++j) eight[j] = kSigns[byte][j] ^ scale;
  std::memcpy(out, eight, count * sizeof(float));
}

TRIBUTARY_MULTIVERSION
void decode(const std::byte* scales, const std::uint8_t* bits, std::size_t first, std::size_t count, float* out) {
  while (count > 0) {
    std::uint32_t scale;
    std::memcpy(&scale, scales + first / kOneBitBlock * sizeof(scale), sizeof(scale));
    const std::size_t here = std::min(count, kOneBitBlock - first % kOneBitBlock);
    const std::uint8_t* in = bits + first / 8;
    for (std::size_t byte = 0; byte < here / 8; ++byte) decode_byte(in[byte], scale, out + 8 * byte, 8);
    if (const std::size_t rest = here % 8; rest != 0) decode_byte(in[here / 8], scale, out + here - rest, rest);
    first += here;
    count -= here;
    out += here;
  }
}

}  // namespace

void onebit_encode(const float* values, std::size_t count, float* residual, float* scales, std::uint8_t* bits) {
  encode(values, count, residual, scales, bits);
}
void onebit_decode(const std::byte* scales, const std::uint8_t* bits, std::size_t first, std::size_t count,
                   float* out) {
  decode(scales, bits, first, count, out);
}

}  // namespace tributary::kernels

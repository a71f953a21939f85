// Packs eight flags of a byte each into one byte of bits: a vector loop's comparisons as a bit mask, in plain C++.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/dispatch.h"

namespace tributary::kernels {

// Flag i (0 or 1, at flags[i]) becomes bit i. The multiplication adds the eight bytes into the top one, each shifted
// to its bit; no two terms meet, so nothing carries. Little-endian, as all machines that we build for.
TRIBUTARY_INLINE std::uint8_t pack_flags(const std::uint8_t* flags) {
  std::uint64_t eight;
  std::memcpy(&eight, flags, sizeof(eight));
  return static_cast<std::uint8_t>((eight * 0x0102040810204080u) >> 56);
}

}  // namespace tributary::kernels

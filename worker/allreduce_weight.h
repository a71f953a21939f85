// How a bucket's weight goes around with its gradients: as floats that any order of adding adds exactly.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tributary {

// Parts of 8 bits: exact for up to this many members.
inline constexpr std::size_t kWeightParts = 8;
inline constexpr std::size_t kMaxWeightMembers = 1u << 16;

inline void put_weight(std::uint64_t weight, float* parts) {
  for (std::size_t i = 0; i < kWeightParts; ++i) parts[i] = static_cast<float>((weight >> (8 * i)) & 0xff);
}

inline std::uint64_t take_weight(const float* parts) {
  std::uint64_t weight = 0;
  for (std::size_t i = 0; i < kWeightParts; ++i) weight += static_cast<std::uint64_t>(parts[i]) << (8 * i);
  return weight;
}

}  // namespace tributary

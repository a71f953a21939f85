// Values for kernels to work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tributary::bench {

// Returns values of roughly normal spread, as gradients have. The same for the same seed.
inline std::vector<float> sample_gradients(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  std::uint32_t random = seed;
  for (float& value : values) {
    float sum = 0.0f;
    for (int k = 0; k < 4; ++k) {
      random = random * 1664525u + 1013904223u;
      sum += static_cast<float>(random >> 8) * 0x1p-24f - 0.5f;
    }
    value = 0.01f * sum;
  }
  return values;
}

}  // namespace tributary::bench

// The tensors of a model that is only exchanged: as many and as large as those of a network.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/layout.h"

namespace tributary::bench {

inline constexpr std::uint64_t kMinTensors = 64;
inline constexpr std::uint64_t kMaxTensorBytes = 4u << 20;

// model_bytes: of fp32 parameters, rounded to whole tensors.
inline std::vector<TensorSpec> sample_tensors(std::uint64_t model_bytes) {
  const std::uint64_t count = std::max(kMinTensors, (model_bytes + kMaxTensorBytes - 1) / kMaxTensorBytes);
  const std::uint64_t elements =
      std::max<std::uint64_t>(model_bytes / sizeof(float) / count / kTensorAlign, 1) * kTensorAlign;
  std::vector<TensorSpec> tensors;
  for (std::uint64_t i = 0; i < count; ++i) tensors.push_back({"layer" + std::to_string(i), {elements}});
  return tensors;
}

}  // namespace tributary::bench

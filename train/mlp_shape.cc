#include "train/mlp_shape.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "common/base/assert.h"
#include "train/counter_rng.h"

namespace tributary::train {

Result<MlpShape> MlpShape::make(std::vector<std::uint32_t> sizes, std::uint32_t max_batch) {
  TRIB_ASSERT(sizes.size() >= 2);
  if (sizes.size() - 1 > kMaxLayers) {
    return fail(ErrorCode::kConfig, "train.hidden has " + std::to_string(sizes.size() - 2) + " layers; use at most " +
                                        std::to_string(kMaxLayers - 1));
  }
  for (std::size_t i = 1; i + 1 < sizes.size(); ++i) {
    if (sizes[i] == 0 || sizes[i] > kMaxWidth) {
      return fail(ErrorCode::kConfig, "train.hidden: layer " + std::to_string(i) + " has " + std::to_string(sizes[i]) +
                                          " units; use 1 to " + std::to_string(kMaxWidth));
    }
  }
  if (max_batch == 0 || max_batch > kMaxBatch) {
    return fail(ErrorCode::kConfig, "a micro-batch has " + std::to_string(max_batch) + " samples, 1 to " +
                                        std::to_string(kMaxBatch) +
                                        " are possible; make train.global_batch smaller or train.accumulation larger");
  }
  return MlpShape(std::move(sizes), max_batch);
}

MlpShape::MlpShape(std::vector<std::uint32_t> sizes, std::uint32_t max_batch)
    : sizes_(std::move(sizes)), max_batch_(max_batch) {
  for (std::size_t l = 0; l < layers(); ++l) {
    const std::string name = "layer" + std::to_string(l);
    tensors_.push_back({name + ".weight", {sizes_[l + 1], sizes_[l]}});
    tensors_.push_back({name + ".bias", {sizes_[l + 1]}});
  }
}

void MlpShape::initialise(std::uint64_t seed, std::size_t tensor, std::span<float> out) const {
  TRIB_ASSERT(tensor < tensors_.size() && out.size() == tensors_[tensor].elements());
  if (tensor % 2 == 1) {
    std::fill(out.begin(), out.end(), 0.0f);
    return;
  }
  const auto bound = static_cast<float>(std::sqrt(6.0 / sizes_[tensor / 2]));
  const CounterRng rng(seed, kStreamInitialValues, tensor);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = bound * rng.symmetric(i);
}

}  // namespace tributary::train

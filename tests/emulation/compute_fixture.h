// What the tests of the trainer's GPU code share: memory as a session has it, samples, both backends, and the emulation
// they run on.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulation/cuda_emulation.h"
#include "tests/emulation/runtime/emulated_runtime.h"
#include "tests/unit/train/even_share.h"
#include "tests/unit/train/synthetic_images.h"
#include "train/cpu_compute.h"
#include "train/cuda_compute.h"
#include "train/mlp_kernels.h"

namespace tributary::train {

using emulation::runtime_counts;
using emulation::RuntimeOptions;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::uint32_t kMaxBatch = kEvaluationBatch;

// Orders in which streams run. Fewer where everything takes ten times longer: memory errors show in each.
#ifdef TRIBUTARY_SANITIZED
inline constexpr std::uint32_t kSeeds = 3;
#else
inline constexpr std::uint32_t kSeeds = 10;
#endif

inline MlpShape shape_of(std::vector<std::uint32_t> sizes) {
  return *MlpShape::make(std::move(sizes), kMaxBatch);
}

// Parameters and gradients as a session has them: each kind in one mapping that begins at a page.
class Memory {
 public:
  explicit Memory(const MlpShape& shape) : shape_(shape) {
    std::size_t elements = 0;
    std::vector<std::size_t> offsets;
    for (const TensorSpec& tensor : shape.tensors()) {
      offsets.push_back(elements);
      elements += (tensor.elements() + 15) / 16 * 16;
    }
    bytes_ = (elements * sizeof(float) + 4095) / 4096 * 4096;
    for (auto* flat : {&parameters_, &gradients_}) {
      flat->reset(static_cast<float*>(std::aligned_alloc(4096, bytes_)));
      std::fill_n(flat->get(), bytes_ / sizeof(float), kNan);
    }
    for (const std::size_t offset : offsets) {
      parameters.push_back(parameters_.get() + offset);
      readable.push_back(parameters_.get() + offset);
      gradients.push_back(gradients_.get() + offset);
    }
  }
  void fill(std::size_t tensor, std::uint64_t seed) {
    shape_.initialise(seed, tensor - tensor % 2, {scratch_for(tensor - tensor % 2)});
    std::copy_n(scratch_.begin(), shape_.tensors()[tensor].elements(), parameters[tensor]);
  }
  void fill_all(std::uint64_t seed) {
    for (std::size_t t = 0; t < parameters.size(); ++t) fill(t, seed);
  }
  RankMemory rank_memory(bool lasting) const {
    return {.parameters = readable, .gradients = gradients, .lasting = lasting};
  }
  // The same memory as a device's, lent by somebody else.
  RankMemory device_memory() const {
    return {.parameters = readable, .gradients = gradients, .lasting = true, .place = MemoryPlace::kDevice};
  }
  void lend() {
    for (const auto* flat : {&parameters_, &gradients_}) emulation::lend(flat->get(), bytes_);
  }
  void take_back() {
    for (const auto* flat : {&parameters_, &gradients_}) emulation::take_back(flat->get());
  }
  std::vector<float> gradient(std::size_t tensor) const {
    return {gradients[tensor], gradients[tensor] + shape_.tensors()[tensor].elements()};
  }
  std::vector<std::vector<float>> all_gradients() const {
    std::vector<std::vector<float>> all;
    for (std::size_t t = 0; t < gradients.size(); ++t) all.push_back(gradient(t));
    return all;
  }

  std::vector<float*> parameters, gradients;
  std::vector<const float*> readable;

 private:
  std::span<float> scratch_for(std::size_t tensor) {
    scratch_.resize(shape_.tensors()[tensor].elements());
    return scratch_;
  }
  struct Free {
    void operator()(float* at) const { std::free(at); }
  };
  const MlpShape& shape_;
  std::size_t bytes_ = 0;
  std::unique_ptr<float, Free> parameters_, gradients_;
  std::vector<float> scratch_;
};

struct Samples : EvenShare {
  Samples(std::uint32_t count, std::uint32_t micro_batches, std::uint32_t seed = 0)
      : EvenShare(numbers(count, seed), micro_batches) {}

 private:
  static std::vector<std::uint32_t> numbers(std::uint32_t count, std::uint32_t seed) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < count; ++i) all.push_back((i * 7 + seed * 31) % 300);
    return all;
  }
};

inline const ImageSet& training_set() {
  static const ImageSet kSet = synthetic(300, 1);
  return kSet;
}

inline std::unique_ptr<ModelCompute> cuda(const MlpShape& shape) {
  auto made = make_cuda_compute(shape, training_set(), 0);
  REQUIRE_MESSAGE(made, made.error().message);
  return std::move(*made);
}
inline std::unique_ptr<ModelCompute> cpu(const MlpShape& shape) {
  auto made = make_cpu_compute(shape, training_set(), "");
  REQUIRE(made);
  return std::move(*made);
}

inline BatchStats gradient_of(ModelCompute& compute, const Share& share, const NeedTensor& need = {},
                              const TensorReady& ready = {}) {
  const auto stats = compute.gradient(share, need, ready);
  REQUIRE_MESSAGE(stats, stats.error().message);
  REQUIRE(*stats);
  return **stats;
}

inline void check_close(const std::vector<std::vector<float>>& found, const std::vector<std::vector<float>>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t t = 0; t < found.size(); ++t) {
    float largest = 0.0f;
    for (const float value : expected[t]) largest = std::max(largest, std::abs(value));
    bool close = found[t].size() == expected[t].size();
    for (std::size_t i = 0; close && i < found[t].size(); ++i) {
      close = std::abs(found[t][i] - expected[t][i]) <= 1e-5f * (largest + 1.0f);  // false for NaN
    }
    CAPTURE(t);
    CHECK(close);
  }
}

inline void use(const RuntimeOptions& options) {
  emulation::use({.seed = options.seed, .max_blocks = options.seed % 2 == 0 ? 1u << 31 : 2});
  emulation::start_runtime(options);
}

}  // namespace tributary::train

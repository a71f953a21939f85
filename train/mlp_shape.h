// The shape of a multi-layer perceptron: inputs - hidden ... - classes, ReLU between layers, softmax cross-entropy last.
//
// Tensors, in this order: layer0.weight [out, in], layer0.bias [out], layer1.weight, ... Tensor 2l is the weight of
// layer l, 2l+1 its bias. The gradient is the SUM over the samples, not the mean: the servers divide by the number of
// samples of the round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"

namespace tributary::train {

class MlpShape {
 public:
  static constexpr std::size_t kMaxLayers = 64;
  static constexpr std::uint32_t kMaxWidth = 65536;
  static constexpr std::uint32_t kMaxBatch = 65536;

  // sizes: inputs, hidden ..., classes. max_batch: samples of the largest forward pass. kConfig names the value that is
  // out of bounds.
  static Result<MlpShape> make(std::vector<std::uint32_t> sizes, std::uint32_t max_batch);

  const std::vector<std::uint32_t>& sizes() const { return sizes_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  std::size_t layers() const { return sizes_.size() - 1; }
  std::uint32_t max_batch() const { return max_batch_; }

  // Initial values of a tensor: He et al. 2015, uniform in +-sqrt(6 / inputs), biases 0.
  // A pure function of (seed, tensor, element).
  void initialise(std::uint64_t seed, std::size_t tensor, std::span<float> out) const;

 private:
  MlpShape(std::vector<std::uint32_t> sizes, std::uint32_t max_batch);

  std::vector<std::uint32_t> sizes_;
  std::uint32_t max_batch_;
  std::vector<TensorSpec> tensors_;
};

}  // namespace tributary::train

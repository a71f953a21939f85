// The multi-layer perceptron of train/mlp_shape.h, in fp32 on one thread. Every sum has a fixed order (train/product.h), so
// that equal operands give equal bits on every processor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "train/aligned_floats.h"
#include "train/mlp_shape.h"
#include "train/pass.h"

namespace tributary::train {

class Mlp : public MlpShape {
 public:
  // Errors: as MlpShape::make.
  static Result<Mlp> make(std::vector<std::uint32_t> sizes, std::uint32_t max_batch);

  // Forward pass over `batch` images; `inputs` must stay until backward().
  // parameters[t]: elements of tensor t. False if abandoned.
  bool forward(const float* inputs, std::uint32_t batch, std::span<const float* const> parameters,
               const NeedTensor& need);
  // After forward(): loss and correct predictions, and the gradient of the loss times `scale` for backward().
  BatchStats loss(std::span<const std::uint8_t> labels, float scale = 1.0f);
  // After loss(): gradients[t] = gradient of the summed loss, or += with `accumulate`; last layer first. An input
  // gradient is computed before its layer's weight is reported ready, because it reads that weight; that of the first
  // layer is not needed.
  void backward(std::span<const float* const> parameters, std::span<float* const> gradients, bool accumulate,
                const TensorReady& ready);

 private:
  explicit Mlp(MlpShape shape);

  std::vector<AlignedFloats> outputs_;  // of each layer, after ReLU; the last one holds the logits
  std::vector<AlignedFloats> deltas_;   // gradient of the loss in each layer's output
  const float* inputs_ = nullptr;
  std::uint32_t batch_ = 0;
};

}  // namespace tributary::train

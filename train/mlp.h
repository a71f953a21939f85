// A multi-layer perceptron: inputs - hidden ... - classes, ReLU between layers,
// softmax cross-entropy on top, in fp32 with OpenBLAS.
//
// Tensors, in this order: layer0.weight [out, in], layer0.bias [out], layer1.weight, ... Tensor 2l is the weight of
// layer l, 2l+1 its bias. The gradient is the SUM over the samples, not the mean: the servers divide by the number of
// samples of the round.
//
// Same bits: OpenBLAS runs on one thread, so that a product's bits depend only on its operands and shape; everything
// else is written as loops of fixed order. (OpenBLAS chooses its kernels by CPU: other CPU kinds may give other bits.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/layout.h"
#include "common/result.h"
#include "train/aligned_floats.h"

namespace tributary::train {

// Sums over samples: of ranks, micro-batches or rounds, they add up.
struct BatchStats {
  double loss_sum = 0.0;
  std::uint64_t correct = 0;
  std::uint64_t samples = 0;

  BatchStats& operator+=(const BatchStats& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    samples += other.samples;
    return *this;
  }
  double mean_loss() const { return samples == 0 ? 0.0 : loss_sum / static_cast<double>(samples); }
  double accuracy() const { return samples == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(samples); }
};

class Mlp {
 public:
  static constexpr std::size_t kMaxLayers = 64;
  static constexpr std::uint32_t kMaxWidth = 65536;
  static constexpr std::uint32_t kMaxBatch = 65536;

  // sizes: inputs, hidden ..., classes. max_batch: samples of the largest forward(). kConfig names what is out of
  // bounds. Sets OpenBLAS to one thread for the whole process.
  static Result<Mlp> make(std::vector<std::uint32_t> sizes, std::uint32_t max_batch);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  std::size_t layers() const { return sizes_.size() - 1; }
  std::uint32_t max_batch() const { return max_batch_; }

  // Initial values of a tensor: He et al. 2015, uniform in +-sqrt(6 / inputs), biases 0.
  // A pure function of (seed, tensor, element).
  void initialise(std::uint64_t seed, std::size_t tensor, std::span<float> out) const;

  // Called before the first use of a tensor's parameters; false abandons the pass.
  using NeedTensor = std::function<bool(std::size_t tensor)>;
  // Called when a tensor's gradient is final and its parameters are read no more.
  using TensorReady = std::function<void(std::size_t tensor)>;

  // Forward pass over `batch` images; `inputs` must stay until backward().
  // parameters[t]: elements of tensor t. False if abandoned.
  bool forward(const float* inputs, std::uint32_t batch, std::span<const float* const> parameters,
               const NeedTensor& need);
  // After forward(): loss and correct predictions, and the loss's gradient for backward().
  BatchStats loss(std::span<const std::uint8_t> labels);
  // After loss(): gradients[t] = gradient of the summed loss, or += with `accumulate`; last layer first. An input
  // gradient is computed before its layer's weight is reported ready, because it reads that weight; that of the first
  // layer is not needed.
  void backward(std::span<const float* const> parameters, std::span<float* const> gradients, bool accumulate,
                const TensorReady& ready);

 private:
  Mlp(std::vector<std::uint32_t> sizes, std::uint32_t max_batch);

  std::vector<std::uint32_t> sizes_;
  std::uint32_t max_batch_;
  std::vector<TensorSpec> tensors_;
  std::vector<AlignedFloats> outputs_;  // of each layer, after ReLU; the last one holds the logits
  std::vector<AlignedFloats> deltas_;   // gradient of the loss in each layer's output
  const float* inputs_ = nullptr;
  std::uint32_t batch_ = 0;
};

}  // namespace tributary::train

// A pass over samples: its sums, and its callbacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

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

// Called before the first use of a tensor's parameters; false abandons the pass.
using NeedTensor = std::function<bool(std::size_t tensor)>;
// Called when a tensor's gradient is final and in its place, and its parameters are read no more.
using TensorReady = std::function<void(std::size_t tensor)>;
// The same with what the gradient counts for in the average, which is the same for all tensors of a round.
using WeightedReady = std::function<void(std::size_t tensor, std::uint64_t weight)>;

}  // namespace tributary::train

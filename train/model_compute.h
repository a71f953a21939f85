// ModelCompute: forward and backward passes of the model on some device. Two backends: the CPU (train/cpu_compute.h)
// and a GPU (train/cuda_compute.h). Both read samples by their index in the training set, take parameters from the
// bound memory and bring gradients there; how they come and go inside is their own affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/result.h"
#include "kernels/optimizer.h"
#include "train/dataset.h"
#include "train/mlp_shape.h"
#include "train/pass.h"

namespace tributary::train {

// Images that evaluate() takes at a time.
inline constexpr std::uint32_t kEvaluationBatch = 500;

// Whose pointers a rank's memory has: the host's, or those of the device that computes.
enum class MemoryPlace { kHost, kDevice };

// A rank's memory, by tensor. What the spans and the pointers lead to stays where it is until unbind(); only the CPU
// must find in `gradients`, at the beginning of each round, where that round's are to be written.
struct RankMemory {
  std::span<const float* const> parameters;
  std::span<float* const> gradients;
  // Of the host: all parameters lie in one mapping, all gradients too, and both will be used for long: worth pinning.
  bool lasting = false;
  MemoryPlace place = MemoryPlace::kHost;
};

// What computes, for people and programs.
struct DeviceInfo {
  std::string device = "cpu";    // "cuda:0 NVIDIA H200"
  std::string blas;              // who multiplies matrices: "OpenBLAS 0.3.21", "cuBLAS 13.0.2"
  std::string note;              // why it is not something better; may be empty
  std::optional<int> cuda = {};  // the device's index, if it is one of CUDA's: only then may memory be the device's
};

// Samples of one rank's share of a round, or of a local step. A function, because the sampler's memory is its own.
struct Share {
  std::uint32_t samples = 0;                                                       // over all micro-batches
  std::uint32_t micro_batches = 1;                                                 // some may be empty
  std::function<std::span<const std::uint32_t>(std::uint32_t micro)> micro_batch;  // valid until the next call
  // Asked before every micro-batch but the first: is there time for another one? If not, the gradient is the sum over
  // what has been done. Null: there always is. A GPU then waits for each micro-batch.
  std::function<bool()> another;
  // What the loss, and with it the gradient, is multiplied by: a power of two. Asked when everything has been needed;
  // null: 1.
  std::function<float()> loss_scale = {};

  float scale() const { return loss_scale ? loss_scale() : 1.0f; }
};

// A step that a replica takes by itself, in mode local_sgd.
struct LocalStep {
  Share share;                   // not empty
  kernels::StepScalars scalars;  // of the inner optimizer
};

// Which state of the inner optimizer a round of local steps begins with.
enum class InnerState {
  kFresh,  // none: it begins anew
  kNext,   // what the last round left
  kAgain,  // what the last round began with: it is computed once more
};

// A replica's part in a round of mode local_sgd.
struct LocalRound {
  std::uint32_t replica = 0;  // of those that begin_local() made room for
  InnerState begins = InnerState::kFresh;
  std::uint32_t steps = 0;
  std::function<LocalStep(std::uint32_t step)> step;
};

// Thread rule: one thread at a time. Errors are the device's (kDevice): the backend is unusable afterwards, but nothing
// of it touches the bound memory any more, and no call to TensorReady is outstanding.
class ModelCompute {
 public:
  virtual ~ModelCompute() = default;

  virtual const MlpShape& shape() const = 0;
  virtual const DeviceInfo& info() const = 0;

  // Where the following passes read parameters and write gradients. REQUIRES: on the host, or info().cuda.
  virtual Status bind(const RankMemory& memory) = 0;
  virtual void unbind() = 0;

  // Gradient of a share, its micro-batches added in order, or as many as there is time for; stats count what they had.
  // Every tensor is first needed (even if the share is empty: only then may its gradient be written), in forward order,
  // and then becomes ready, last layer first. Nothing is ready before everything was needed. Empty if `need` abandoned
  // the round. `need` and `ready` may be null.
  virtual Result<std::optional<BatchStats>> gradient(const Share& share, const NeedTensor& need,
                                                     const TensorReady& ready) = 0;

  // To be called before the first local_round(): makes room for a replica's parameters and for the inner optimizer's
  // state of so many replicas. keeps: from round to round; otherwise every round is kFresh.
  virtual Status begin_local(std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas, bool keeps) = 0;

  // From the bound parameters on, steps of the inner optimizer, each along the mean gradient of its share. What comes
  // out as the gradient is by how much they moved: the bound parameters minus the replica's. `need`, `ready` and the
  // result as in gradient(); nothing is ready before the last step. A replica without steps contributes zeros,
  // and such a round is none for its inner state; nor is one that was abandoned. REQUIRES: the bound parameters stay
  // until their tensor is ready.
  virtual Result<std::optional<BatchStats>> local_round(const LocalRound& round, const NeedTensor& need,
                                                        const TensorReady& ready) = 0;

  // Loss and accuracy of the bound parameters over a whole set. REQUIRES: nothing else writes the parameters meanwhile.
  virtual Result<BatchStats> evaluate(const ImageSet& set) = 0;

  // Copies the bound parameters of a tensor to the host, where `to` has as many elements. REQUIRES: as evaluate().
  virtual Status read_parameters(std::size_t tensor, std::span<float> to) = 0;
};

}  // namespace tributary::train

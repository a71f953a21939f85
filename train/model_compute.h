// ModelCompute: forward and backward passes of the model. It reads samples by their index in the training set, takes
// parameters from the bound memory and brings gradients there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "kernels/step/optimizer.h"
#include "train/aligned_floats.h"
#include "train/dataset.h"
#include "train/host_replicas.h"
#include "train/mlp.h"
#include "train/pass.h"

namespace tributary::train {

// Images that evaluate() takes at a time.
inline constexpr std::uint32_t kEvaluationBatch = 500;

// A rank's memory, by tensor. The spans stay until unbind(); between rounds `gradients` may be given other places.
struct RankMemory {
  std::span<const float* const> parameters;
  std::span<float* const> gradients;
};

// Samples of one rank's share of a round, or of a local step. A function, because the sampler's memory is its own.
struct Share {
  std::uint32_t samples = 0;                                                       // over all micro-batches
  std::uint32_t micro_batches = 1;                                                 // some may be empty
  std::function<std::span<const std::uint32_t>(std::uint32_t micro)> micro_batch;  // valid until the next call
  // Asked before every micro-batch but the first: is there time for another one? If not, the gradient is the sum over
  // the micro-batches done. Null: there always is.
  std::function<bool()> another;
  // The factor for the loss, and so for the gradient: a power of two. Called once every tensor was needed; null: 1.
  std::function<float()> loss_scale = {};

  float scale() const { return loss_scale ? loss_scale() : 1.0f; }
};

// A step that a replica takes by itself, in mode local_sgd.
struct LocalStep {
  Share share;                   // not empty
  kernels::StepScalars scalars;  // of the inner optimizer
};

// A replica's part in a round of mode local_sgd.
struct LocalRound {
  std::uint32_t replica = 0;  // of those that begin_local() made room for
  InnerState begins = InnerState::kFresh;
  std::uint32_t steps = 0;
  std::function<LocalStep(std::uint32_t step)> step;
};

// Thread rule: one thread at a time.
class ModelCompute {
 public:
  // `training` must outlive the result. Errors: as Mlp::make.
  static Result<ModelCompute> make(const MlpShape& shape, const ImageSet& training);

  const MlpShape& shape() const { return mlp_; }

  // Sets the memory from which the following passes read parameters and to which they write gradients.
  void bind(const RankMemory& memory);
  void unbind() { memory_ = {}; }

  // Computes the gradient of a share: its micro-batches added in order, or as many as there is time for; the stats
  // count those. Every tensor is first needed (even if the share is empty: only then may its gradient be written), in
  // forward order, and then becomes ready, last layer first. No tensor is ready before every one was needed. Empty if
  // `need` abandoned the round. `need` and `ready` may be null.
  std::optional<BatchStats> gradient(const Share& share, const NeedTensor& need, const TensorReady& ready);

  // Allocates a replica's parameters and the inner optimizer's state of so many replicas. Call it before the first
  // local_round(). keeps: state is kept from round to round; otherwise every round is kFresh.
  void begin_local(std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas, bool keeps);

  // Takes steps of the inner optimizer from the bound parameters, each along the mean gradient of its share. The result
  // as the gradient is the move: the bound parameters minus the replica's. `need`, `ready` and the return value as in
  // gradient(); no tensor is ready before the last step. A replica without steps contributes zeros; such a round, like
  // an abandoned one, does not count for its inner state. REQUIRES: the bound parameters stay until their tensor is
  // ready.
  std::optional<BatchStats> local_round(const LocalRound& round, const NeedTensor& need, const TensorReady& ready);

  // Loss and accuracy of the bound parameters over a whole set. REQUIRES: nothing else writes the parameters meanwhile.
  BatchStats evaluate(const ImageSet& set);

 private:
  ModelCompute(Mlp mlp, const ImageSet& training);
  std::optional<BatchStats> zeros(const NeedTensor& need, const TensorReady& ready);
  void tell_all(const TensorReady& ready) const;
  std::optional<BatchStats> pass(const Share& share, std::span<const float* const> parameters, const NeedTensor& need,
                                 const TensorReady& ready);

  const ImageSet* training_;
  Mlp mlp_;
  RankMemory memory_;
  std::optional<HostReplicas> replicas_;  // with local steps
  AlignedFloats inputs_;
  std::vector<std::uint8_t> labels_;
};

}  // namespace tributary::train

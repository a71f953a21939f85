// RankCompute: what one rank computes in one round, from samples to the gradient. The trainer and the standalone
// reference share it, hence the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/config.h"
#include "common/ids.h"
#include "train/dataset.h"
#include "train/mlp.h"
#include "train/sampler.h"

namespace tributary::train {

// Images that evaluate() takes at a time.
inline constexpr std::uint32_t kEvaluationBatch = 500;

// Thread rule: one thread at a time.
class RankCompute {
 public:
  // `training` must outlive this. kConfig as Sampler::make and Mlp::make.
  static Result<RankCompute> make(const TrainConfig& config, const ImageSet& training, std::uint32_t world_size);

  const Mlp& mlp() const { return mlp_; }
  const Sampler& sampler() const { return sampler_; }

  // Gradient of the rank's share of a round, its micro-batches added in order. Every tensor is first needed (even if
  // the rank has no samples: only then may its gradient be written), in forward order, and then becomes ready, last
  // layer first. Nothing is ready before everything was needed. Empty if `need` abandoned the round.
  std::optional<BatchStats> gradient(Round round, Rank rank, std::span<const float* const> parameters,
                                     std::span<float* const> gradients, const Mlp::NeedTensor& need,
                                     const Mlp::TensorReady& ready);

  // Loss and accuracy over a whole set.
  BatchStats evaluate(const ImageSet& set, std::span<const float* const> parameters);

 private:
  RankCompute(const ImageSet& training, Sampler sampler, Mlp mlp);

  const ImageSet* training_;
  Sampler sampler_;
  Mlp mlp_;
  AlignedFloats inputs_;
  std::vector<std::uint8_t> labels_;
};

// Last round of the job: all epochs, or train.max_rounds if that is less (and not 0).
Round last_round(const TrainConfig& config, const Sampler& sampler);

// Whether the job asks for an evaluation after this round (train.eval_every_epochs; 0 would be never).
bool evaluates_after(const TrainConfig& config, const Sampler& sampler, Round round);

}  // namespace tributary::train

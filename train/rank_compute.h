// RankCompute: what one rank computes in one round, from samples to the gradient, on the device that was chosen. The
// trainer and the standalone reference share it, hence the same bits on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/config.h"
#include "common/device_choice.h"
#include "common/ids.h"
#include "train/dataset.h"
#include "train/model_compute.h"
#include "train/sampler.h"

namespace tributary::train {

// Thread rule: one thread at a time.
class RankCompute {
 public:
  // `training` must outlive this. kConfig as Sampler::make and MlpShape::make. kDevice if the chosen GPU cannot be set
  // up; where the choice was ours, the CPU steps in and says so in info().note.
  static Result<RankCompute> make(const TrainConfig& config, const ImageSet& training, std::uint32_t world_size,
                                  const DeviceChoice& device = {});
  // Of parts: for tests that compute in their own way.
  RankCompute(Sampler sampler, std::unique_ptr<ModelCompute> model);

  const MlpShape& shape() const { return model_->shape(); }
  const DeviceInfo& info() const { return model_->info(); }
  const Sampler& sampler() const { return sampler_; }

  // As ModelCompute's.
  Status bind(const RankMemory& memory) { return model_->bind(memory); }
  void unbind() { model_->unbind(); }
  // Gradient of the rank's share of a round.
  Result<std::optional<BatchStats>> gradient(Round round, Rank rank, const NeedTensor& need, const TensorReady& ready);
  Result<BatchStats> evaluate(const ImageSet& set) { return model_->evaluate(set); }
  Status read_parameters(std::size_t tensor, std::span<float> to) { return model_->read_parameters(tensor, to); }

 private:
  Sampler sampler_;
  std::unique_ptr<ModelCompute> model_;
};

// The network that the job describes, for these images; batches as large as the sampler's and evaluation's.
Result<MlpShape> shape_for(const TrainConfig& config, const ImageSet& training, const Sampler& sampler);

// Last round of the job: all epochs, or train.max_rounds if that is less (and not 0).
Round last_round(const TrainConfig& config, const Sampler& sampler);

// Whether the job asks for an evaluation after this round (train.eval_every_epochs; 0 would be never).
bool evaluates_after(const TrainConfig& config, const Sampler& sampler, Round round);

}  // namespace tributary::train

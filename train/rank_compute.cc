#include "train/rank_compute.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "train/cpu_compute.h"
#include "train/cuda_compute.h"

namespace tributary::train {

namespace {

Result<std::unique_ptr<ModelCompute>> make_model(const MlpShape& shape, const ImageSet& training,
                                                 const DeviceChoice& device) {
  std::string why = device.why;
  if (device.kind == DeviceKind::kCuda) {
    Result<std::unique_ptr<ModelCompute>> model = make_cuda_compute(shape, training, device.index);
    if (model || !device.may_fall_back) return model;
    why = model.error().message;
  }
  return make_cpu_compute(shape, training, std::move(why));
}

}  // namespace

Result<MlpShape> shape_for(const TrainConfig& config, const ImageSet& training, const Sampler& sampler) {
  std::vector<std::uint32_t> sizes{static_cast<std::uint32_t>(training.image_size())};
  sizes.insert(sizes.end(), config.hidden.begin(), config.hidden.end());
  sizes.push_back(kClasses);
  return MlpShape::make(std::move(sizes), std::max(sampler.micro_batch_limit(), kEvaluationBatch));
}

Result<RankCompute> RankCompute::make(const TrainConfig& config, const ImageSet& training, std::uint32_t world_size,
                                      const DeviceChoice& device) {
  Result<Sampler> sampler = Sampler::make({.samples = training.count,
                                           .global_batch = config.global_batch,
                                           .world_size = world_size,
                                           .accumulation = config.accumulation,
                                           .seed = config.seed});
  if (!sampler) return tl::unexpected(sampler.error());
  const Result<MlpShape> shape = shape_for(config, training, *sampler);
  if (!shape) return tl::unexpected(shape.error());
  Result<std::unique_ptr<ModelCompute>> model = make_model(*shape, training, device);
  if (!model) return tl::unexpected(model.error());
  return RankCompute(std::move(*sampler), std::move(*model));
}

RankCompute::RankCompute(Sampler sampler, std::unique_ptr<ModelCompute> model)
    : sampler_(std::move(sampler)), model_(std::move(model)) {}

Result<std::optional<BatchStats>> RankCompute::gradient(Round round, Rank rank, const NeedTensor& need,
                                                        const TensorReady& ready) {
  Share share;
  share.samples = sampler_.share_size(round, rank);
  share.micro_batches = sampler_.accumulation();
  share.micro_batch = [&](std::uint32_t micro) { return sampler_.micro_batch(round, rank, micro); };
  return model_->gradient(share, need, ready);
}

Round last_round(const TrainConfig& config, const Sampler& sampler) {
  const std::uint64_t all = config.epochs * sampler.rounds_per_epoch();
  return Round(config.max_rounds == 0 ? all : std::min(all, config.max_rounds));
}

bool evaluates_after(const TrainConfig& config, const Sampler& sampler, Round round) {
  return config.eval_every_epochs != 0 && round.value % (config.eval_every_epochs * sampler.rounds_per_epoch()) == 0;
}

}  // namespace tributary::train

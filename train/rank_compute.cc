#include "train/rank_compute.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/assert.h"

namespace tributary::train {

Result<RankCompute> RankCompute::make(const TrainConfig& config, const ImageSet& training, std::uint32_t world_size) {
  Result<Sampler> sampler = Sampler::make({.samples = training.count,
                                           .global_batch = config.global_batch,
                                           .world_size = world_size,
                                           .accumulation = config.accumulation,
                                           .seed = config.seed});
  if (!sampler) return tl::unexpected(sampler.error());
  std::vector<std::uint32_t> sizes{static_cast<std::uint32_t>(training.image_size())};
  sizes.insert(sizes.end(), config.hidden.begin(), config.hidden.end());
  sizes.push_back(kClasses);
  Result<Mlp> mlp = Mlp::make(std::move(sizes), std::max(sampler->micro_batch_limit(), kEvaluationBatch));
  if (!mlp) return tl::unexpected(mlp.error());
  return RankCompute(training, std::move(*sampler), std::move(*mlp));
}

RankCompute::RankCompute(const ImageSet& training, Sampler sampler, Mlp mlp)
    : training_(&training),
      sampler_(std::move(sampler)),
      mlp_(std::move(mlp)),
      inputs_(mlp_.max_batch() * training.image_size()),
      labels_(mlp_.max_batch()) {}

std::optional<BatchStats> RankCompute::gradient(Round round, Rank rank, std::span<const float* const> parameters,
                                                std::span<float* const> gradients, const Mlp::NeedTensor& need,
                                                const Mlp::TensorReady& ready) {
  const std::size_t tensors = mlp_.tensors().size();
  const std::uint32_t share = sampler_.share_size(round, rank);
  if (share == 0) {
    for (std::size_t t = 0; t < tensors; ++t) {
      if (need && !need(t)) return std::nullopt;
    }
    for (std::size_t l = mlp_.layers(); l-- > 0;) {
      for (const std::size_t t : {2 * l, 2 * l + 1}) {
        std::fill_n(gradients[t], mlp_.tensors()[t].elements(), 0.0f);
        if (ready) ready(t);
      }
    }
    return BatchStats{};
  }
  BatchStats stats;
  for (std::uint32_t micro = 0; micro < sampler_.accumulation(); ++micro) {
    const std::span<const std::uint32_t> samples = sampler_.micro_batch(round, rank, micro);
    if (samples.empty()) continue;
    const auto batch = static_cast<std::uint32_t>(samples.size());
    // Gathered before the first tensor is waited for: it runs while answers are still on their way.
    training_->gather(samples, inputs_.data(), labels_.data());
    const bool first = stats.samples == 0;
    if (!mlp_.forward(inputs_.data(), batch, parameters, first ? need : Mlp::NeedTensor{})) return std::nullopt;
    stats += mlp_.loss(std::span(labels_).first(batch));
    const bool last = stats.samples == share;
    mlp_.backward(parameters, gradients, !first, last ? ready : Mlp::TensorReady{});
  }
  TRIB_ASSERT(stats.samples == share);
  return stats;
}

BatchStats RankCompute::evaluate(const ImageSet& set, std::span<const float* const> parameters) {
  TRIB_ASSERT(set.image_size() == training_->image_size());
  BatchStats stats;
  std::vector<std::uint32_t> samples;
  for (std::uint32_t begin = 0; begin < set.count; begin += kEvaluationBatch) {
    const std::uint32_t batch = std::min(kEvaluationBatch, set.count - begin);
    samples.resize(batch);
    std::iota(samples.begin(), samples.end(), begin);
    set.gather(samples, inputs_.data(), labels_.data());
    mlp_.forward(inputs_.data(), batch, parameters, nullptr);
    stats += mlp_.loss(std::span(labels_).first(batch));
  }
  return stats;
}

Round last_round(const TrainConfig& config, const Sampler& sampler) {
  const std::uint64_t all = config.epochs * sampler.rounds_per_epoch();
  return Round(config.max_rounds == 0 ? all : std::min(all, config.max_rounds));
}

bool evaluates_after(const TrainConfig& config, const Sampler& sampler, Round round) {
  return config.eval_every_epochs != 0 && round.value % (config.eval_every_epochs * sampler.rounds_per_epoch()) == 0;
}

}  // namespace tributary::train

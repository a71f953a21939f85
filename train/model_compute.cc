#include "train/model_compute.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/assert.h"

namespace tributary::train {

Result<ModelCompute> ModelCompute::make(const MlpShape& shape, const ImageSet& training) {
  Result<Mlp> mlp = Mlp::make(shape.sizes(), shape.max_batch());
  if (!mlp) return tl::unexpected(mlp.error());
  return ModelCompute(std::move(*mlp), training);
}

ModelCompute::ModelCompute(Mlp mlp, const ImageSet& training)
    : training_(&training),
      mlp_(std::move(mlp)),
      inputs_(mlp_.max_batch() * training.image_size()),
      labels_(mlp_.max_batch()) {}

void ModelCompute::bind(const RankMemory& memory) {
  TRIB_ASSERT(memory.parameters.size() == mlp_.tensors().size());
  memory_ = memory;
}

std::optional<BatchStats> ModelCompute::gradient(const Share& share, const NeedTensor& need, const TensorReady& ready) {
  if (share.samples == 0) return zeros(need, ready);
  return pass(share, memory_.parameters, need, ready);
}

void ModelCompute::begin_local(std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas, bool keeps) {
  replicas_.emplace(mlp_, std::move(inner), replicas, keeps);
}

std::optional<BatchStats> ModelCompute::local_round(const LocalRound& round, const NeedTensor& need,
                                                    const TensorReady& ready) {
  TRIB_ASSERT(replicas_.has_value());
  if (round.steps == 0) return zeros(need, ready);
  replicas_->begin(round.replica, round.begins);
  BatchStats stats;
  for (std::uint32_t k = 0; k < round.steps; ++k) {
    const LocalStep step = round.step(k);
    const bool first = k == 0, last = k + 1 == round.steps;
    const std::span<const float* const> parameters = first ? memory_.parameters : replicas_->parameters();
    // A tensor steps as soon as its gradient is there: nothing reads its parameters any more in this pass.
    const auto steps = [&](std::size_t t) {
      replicas_->step(t, step.scalars, parameters[t], memory_.gradients[t], step.share.samples);
      if (!last) return;
      replicas_->subtract(t, memory_.parameters[t], memory_.gradients[t]);
      if (ready) ready(t);
    };
    const std::optional<BatchStats> passed = pass(step.share, parameters, first ? need : NeedTensor{}, steps);
    if (!passed) return std::nullopt;
    stats += *passed;
  }
  replicas_->end();
  return stats;
}

BatchStats ModelCompute::evaluate(const ImageSet& set) {
  TRIB_ASSERT(set.image_size() == training_->image_size());
  BatchStats stats;
  std::vector<std::uint32_t> samples;
  for (std::uint32_t begin = 0; begin < set.count; begin += kEvaluationBatch) {
    const std::uint32_t batch = std::min(kEvaluationBatch, set.count - begin);
    samples.resize(batch);
    std::iota(samples.begin(), samples.end(), begin);
    set.gather(samples, inputs_.data(), labels_.data());
    mlp_.forward(inputs_.data(), batch, memory_.parameters, nullptr);
    stats += mlp_.loss(std::span(labels_).first(batch));
  }
  return stats;
}

std::optional<BatchStats> ModelCompute::zeros(const NeedTensor& need, const TensorReady& ready) {
  for (std::size_t t = 0; t < mlp_.tensors().size(); ++t) {
    if (need && !need(t)) return std::nullopt;
  }
  for (std::size_t l = mlp_.layers(); l-- > 0;) {
    for (const std::size_t t : {2 * l, 2 * l + 1}) {
      std::fill_n(memory_.gradients[t], mlp_.tensors()[t].elements(), 0.0f);
      if (ready) ready(t);
    }
  }
  return BatchStats{};
}

// All gradients are in their place.
void ModelCompute::tell_all(const TensorReady& ready) const {
  for (std::size_t l = mlp_.layers(); ready && l-- > 0;) {
    ready(2 * l);
    ready(2 * l + 1);
  }
}

// The gradient of a share that is not empty, in these parameters.
std::optional<BatchStats> ModelCompute::pass(const Share& share, std::span<const float* const> parameters,
                                             const NeedTensor& need, const TensorReady& ready) {
  TRIB_ASSERT(parameters.size() == mlp_.tensors().size() && memory_.gradients.size() == parameters.size());
  BatchStats stats;
  for (std::uint32_t micro = 0; micro < share.micro_batches; ++micro) {
    if (stats.samples > 0 && share.another && !share.another()) {
      tell_all(ready);
      return stats;
    }
    const std::span<const std::uint32_t> samples = share.micro_batch(micro);
    if (samples.empty()) continue;
    const auto batch = static_cast<std::uint32_t>(samples.size());
    // Gathered before the first tensor is waited for: it runs while answers are still on their way.
    training_->gather(samples, inputs_.data(), labels_.data());
    const bool first = stats.samples == 0;
    if (!mlp_.forward(inputs_.data(), batch, parameters, first ? need : NeedTensor{})) return std::nullopt;
    stats += mlp_.loss(std::span(labels_).first(batch), share.scale());
    const bool last = stats.samples == share.samples;
    mlp_.backward(parameters, memory_.gradients, !first, last ? ready : TensorReady{});
  }
  TRIB_ASSERT(stats.samples == share.samples);
  return stats;
}

}  // namespace tributary::train

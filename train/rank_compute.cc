#include "train/rank_compute.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/config/optimizer_config.h"
#include "common/config/schedule.h"

namespace tributary::train {

Result<MlpShape> shape_for(const TrainConfig& config, const ImageSet& training, const Sampler& sampler) {
  std::vector<std::uint32_t> sizes{static_cast<std::uint32_t>(training.image_size())};
  sizes.insert(sizes.end(), config.hidden.begin(), config.hidden.end());
  sizes.push_back(kClasses);
  return MlpShape::make(std::move(sizes), std::max(sampler.micro_batch_limit(), kEvaluationBatch));
}

Result<RankCompute> RankCompute::make(const JobConfig& job, const ImageSet& training, std::uint32_t world_size,
                                      std::uint32_t replicas) {
  if (job.optimizer.name == "mean") {
    return fail(ErrorCode::kConfig,
                "optimizer.name = \"mean\": the built-in trainer takes no steps of its own; name an optimizer that the "
                "servers have, as adamw");
  }
  const TrainConfig& config = job.train;
  Result<Sampler> sampler = Sampler::make({.samples = training.count,
                                           .global_batch = config.global_batch,
                                           .world_size = world_size,
                                           .accumulation = config.accumulation,
                                           .local_steps = has_local_steps(job) ? job.local.steps : 1,
                                           .seed = config.seed,
                                           .elastic = is_elastic(job)});
  if (!sampler) return tl::unexpected(sampler.error());
  const Result<MlpShape> shape = shape_for(config, training, *sampler);
  if (!shape) return tl::unexpected(shape.error());
  Result<ModelCompute> model = ModelCompute::make(*shape, training);
  if (!model) return tl::unexpected(model.error());
  RankCompute compute(std::move(*sampler), std::move(*model));
  if (has_deadline(job)) {
    if (config.accumulation < 2) {
      return fail(ErrorCode::kConfig, "sync.deadline_ms = " + std::to_string(job.sync.deadline_ms) +
                                          " needs micro-batches between which a rank can stop: set train.accumulation "
                                          "to 2 or more (8 to 32 are usual)");
    }
    compute.deadline_.emplace(job.sync.deadline_ms * 1'000'000ull);
  }
  if (!has_local_steps(job)) return compute;
  std::shared_ptr<const kernels::Optimizer> inner = make_optimizer(job.local.optimizer);
  if (!inner) {
    return fail(ErrorCode::kConfig,
                "local.optimizer = \"" + job.local.optimizer.name + "\" " + must_be_one_of(kernels::optimizer_names()));
  }
  compute.inner_ = Inner{.config = job.local, .schedule = job.schedule, .optimizer = inner, .kept = {}};
  compute.inner_->kept.resize(replicas);
  compute.model_.begin_local(std::move(inner), replicas, job.local.keep_state);
  return compute;
}

RankCompute::RankCompute(Sampler sampler, ModelCompute model)
    : sampler_(std::move(sampler)), model_(std::move(model)) {}

void RankCompute::be_slow(std::size_t samples) const {
  if (us_per_sample_ <= 0.0) return;
  const double ns = 1e3 * us_per_sample_ * static_cast<double>(samples);
  std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<std::uint64_t>(ns)));
}

Share RankCompute::share_of(Round round, Rank rank, std::uint32_t step) {
  Share share;
  share.samples = sampler_.step_share_size(round, step, rank);
  share.micro_batches = sampler_.accumulation();
  share.micro_batch = [=, this](std::uint32_t micro) {
    const std::span<const std::uint32_t> samples = sampler_.micro_batch(round, rank, micro, step);
    // The first micro-batch is slow when the parameters are there.
    if (micro > 0 || step > 0) be_slow(samples.size());
    computed_sum_ += samples_sum(samples);
    return samples;
  };
  return share;
}

std::optional<BatchStats> RankCompute::gradient(Round round, Rank rank, const NeedTensor& need,
                                                const WeightedReady& ready, std::uint32_t replica,
                                                std::function<float()> loss_scale) {
  computed_sum_ = 0;
  const std::size_t last_tensor = shape().tensors().size() - 1;
  const NeedTensor needed = [&](std::size_t tensor) {
    if (need && !need(tensor)) return false;
    if (tensor == 0 && deadline_) deadline_->begin(steady_ns());
    if (tensor == last_tensor && us_per_sample_ > 0.0) be_slow(sampler_.micro_batch(round, rank, 0, 0).size());
    return true;
  };
  // All that is handed out is in the gradient by the time that its first tensor is ready.
  std::uint64_t weight = deadline_ ? 0 : this->weight(round, rank);
  TensorReady told;
  if (ready) told = [&](std::size_t tensor) { ready(tensor, weight); };
  if (inner_) return local_round(round, rank, needed, told, replica);
  Share share = share_of(round, rank, 0);
  share.loss_scale = std::move(loss_scale);
  if (deadline_) {
    share.another = [this] { return deadline_->another(steady_ns()); };
    share.micro_batch = [&, whole = std::move(share.micro_batch)](std::uint32_t micro) {
      const std::span<const std::uint32_t> samples = whole(micro);
      weight += samples.size();
      return samples;
    };
  }
  return model_.gradient(share, needed, told);
}

std::optional<BatchStats> RankCompute::local_round(Round round, Rank rank, const NeedTensor& need,
                                                   const TensorReady& ready, std::uint32_t replica) {
  LocalRound local{.replica = replica, .steps = sampler_.steps(round), .step = {}};
  // Only an epoch's last batch can be too small for all ranks.
  if (sampler_.step_share_size(round, local.steps - 1, rank) == 0) --local.steps;
  Inner::Kept& kept = inner_->kept[replica];
  const bool again = round == kept.round, next = round == kept.round.next();
  std::uint64_t taken = inner_->config.keep_state && next ? kept.taken : 0;
  // A round without steps does not change the state.
  if (inner_->config.keep_state && again) taken = local.steps == 0 ? kept.taken : kept.taken_before;
  if (taken > 0) {
    local.begins = again ? InnerState::kAgain : InnerState::kNext;
  } else {
    kept = {};  // what there was is overwritten, also if the round is abandoned
  }
  const std::uint64_t before = sampler_.steps_before(round);
  local.step = [&](std::uint32_t step) {
    const double lr = scheduled_lr(inner_->schedule, inner_->config.optimizer.lr, before + step + 1);
    return LocalStep{.share = share_of(round, rank, step), .scalars = inner_->optimizer->scalars(taken + step + 1, lr)};
  };
  const std::optional<BatchStats> stats = model_.local_round(local, need, ready);
  if (!stats) return stats;
  kept.round = round;
  if (local.steps > 0) {
    kept.taken_before = taken;
    kept.taken = taken + local.steps;
  }
  return stats;
}

std::uint32_t RankCompute::weight(Round round, Rank rank) const {
  const std::uint32_t samples = sampler_.share_size(round, rank);
  return inner_ ? std::min(samples, 1u) : samples;
}

bool RankCompute::lost_inner_state(Round round) const {
  if (!inner_ || !inner_->config.keep_state || inner_->optimizer->slots() == 0 || round.value <= 1) return false;
  return std::ranges::any_of(inner_->kept,
                             [round](const auto& k) { return k.round != round && k.round.next() != round; });
}

Round last_round(const TrainConfig& config, const Sampler& sampler) {
  const std::uint64_t all = config.epochs * sampler.rounds_per_epoch();
  return Round(config.max_rounds == 0 ? all : std::min(all, config.max_rounds));
}

bool evaluates_after(const TrainConfig& config, const Sampler& sampler, Round round) {
  return config.eval_every_epochs != 0 && round.value % (config.eval_every_epochs * sampler.rounds_per_epoch()) == 0;
}

}  // namespace tributary::train

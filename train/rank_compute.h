// RankCompute: the computation of one rank in one round, from samples to the gradient. The trainer and the standalone
// reference share it, hence the same bits.
//
// In mode local_sgd a rank is a replica. In a round it takes local steps from the servers' parameters with the inner
// optimizer of [local], and its gradient is the move: parameters before minus after. Such gradients weigh 1 each, so
// that the servers' average is that of the replicas' moves.
//
// With sync.deadline_ms a rank computes for so long in a round, and its gradient is the sum over the samples done by
// then (train/round_deadline.h). The rest of its share is skipped: it comes again in the next epoch, in another order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/config/config.h"
#include "train/dataset.h"
#include "train/model_compute.h"
#include "train/round_deadline.h"
#include "train/sampler.h"

namespace tributary::train {

// Thread rule: one thread at a time.
class RankCompute {
 public:
  // `training` must outlive this object. kConfig as Sampler::make and MlpShape::make. replicas: the number of replicas
  // whose local steps it will compute, if the job has them.
  static Result<RankCompute> make(const JobConfig& job, const ImageSet& training, std::uint32_t world_size,
                                  std::uint32_t replicas = 1);

  const MlpShape& shape() const { return model_.shape(); }
  const Sampler& sampler() const { return sampler_; }
  // Elastic jobs: other ranks share the batches from the next round on, at least as many as make() was told.
  void set_world_size(std::uint32_t world_size) { sampler_.set_world_size(world_size); }

  // As ModelCompute's.
  void bind(const RankMemory& memory) { model_.bind(memory); }
  void unbind() { model_.unbind(); }
  // Computes the gradient of the rank's share of a round. `ready` gets its weight in the average: its samples; with
  // local steps 1, or 0 if it had none. The result counts the samples. replica: the rank's number among several that
  // are computed here. loss_scale: as Share's.
  std::optional<BatchStats> gradient(Round round, Rank rank, const NeedTensor& need, const WeightedReady& ready,
                                     std::uint32_t replica = 0, std::function<float()> loss_scale = {});
  // The weight without a deadline.
  std::uint32_t weight(Round round, Rank rank) const;
  // samples_sum() of all that the last gradient() computed.
  std::uint64_t computed_sum() const { return computed_sum_; }
  // As on a slower machine: sleeps for so long per sample. On machines with fewer processors than ranks, sleeping ranks
  // do not slow down each other.
  void slow_down(double us_per_sample) { us_per_sample_ = us_per_sample; }
  // Whether the job keeps the inner optimizer's state from round to round, and the state here does not belong to this
  // round, so that it will begin with zeros. (Kept is this round's initial state if it was the last one computed here,
  // or the final state of the round before.)
  bool lost_inner_state(Round round) const;
  BatchStats evaluate(const ImageSet& set) { return model_.evaluate(set); }

 private:
  struct Inner {
    LocalConfig config;
    ScheduleConfig schedule;  // counted in local steps of the job
    std::shared_ptr<const kernels::Optimizer> optimizer;
    // The rounds and steps of a replica's state.
    struct Kept {
      Round round;                     // the last one it was through; 0: none
      std::uint64_t taken = 0;         // steps since it began
      std::uint64_t taken_before = 0;  // when that round began
    };
    std::vector<Kept> kept;  // by replica
  };
  RankCompute(Sampler sampler, ModelCompute model);
  std::optional<BatchStats> local_round(Round round, Rank rank, const NeedTensor& need, const TensorReady& ready,
                                        std::uint32_t replica);
  Share share_of(Round round, Rank rank, std::uint32_t step);
  void be_slow(std::size_t samples) const;

  Sampler sampler_;
  ModelCompute model_;
  std::optional<Inner> inner_;  // with local steps
  std::optional<RoundDeadline> deadline_;
  double us_per_sample_ = 0.0;  // slow_down()
  std::uint64_t computed_sum_ = 0;
};

// The network that the job describes, for these images; batches as large as the sampler's and evaluation's.
Result<MlpShape> shape_for(const TrainConfig& config, const ImageSet& training, const Sampler& sampler);

// Last round of the job: all epochs, or train.max_rounds if that is less (and not 0).
Round last_round(const TrainConfig& config, const Sampler& sampler);

// Whether the job asks for an evaluation after this round (train.eval_every_epochs; 0 would be never).
bool evaluates_after(const TrainConfig& config, const Sampler& sampler, Round round);

}  // namespace tributary::train

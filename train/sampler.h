// The global sampler: the samples of a rank in a step of a round. A pure function of (seed, round, step, rank), so that
// a resume needs no state.
//
// Every epoch is a permutation of all samples, shuffled by (seed, epoch). A step takes its next global_batch entries;
// rank k of n takes the k-th of n contiguous shares, and splits it into `accumulation` micro-batches. So each sample
// comes exactly once an epoch over all ranks. The last batch of an epoch may be smaller: it is shared out as evenly as
// possible, shares then differ by one sample at most, and may be empty.
//
// In an elastic job every batch is shared out so, because the number of ranks changes from view to view
// (set_world_size()). A round's samples do not change: each still comes exactly once an epoch.
//
// A round is one step; with local steps (mode local_sgd) it is `local_steps` of them. Rounds do not reach over the end
// of an epoch: if the epoch's number of steps is no multiple of local_steps, its last round has fewer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tributary::train {

// Returns a sum of samples that does not depend on their order. The sums of a round's ranks add up to that of world
// size 1 if and only if (but for chance) each sample was dealt once.
std::uint64_t samples_sum(std::span<const std::uint32_t> samples);

struct SamplerOptions {
  std::uint32_t samples = 0;  // in the training set
  std::uint32_t global_batch = 1;
  std::uint32_t world_size = 1;
  std::uint32_t accumulation = 1;
  std::uint32_t local_steps = 1;  // a round
  std::uint64_t seed = 1;
  bool elastic = false;
};

class Sampler {
 public:
  // kConfig if global_batch is larger than the training set, or does not divide by world_size * accumulation in a job
  // that is not elastic.
  static Result<Sampler> make(const SamplerOptions& options);
  // Sets the ranks that share the batches from now on. REQUIRES: world_size > 0, and elastic or as before.
  void set_world_size(std::uint32_t world_size);

  std::uint64_t rounds_per_epoch() const { return rounds_per_epoch_; }
  // Epochs count from 0, rounds from 1.
  std::uint64_t epoch_of(Round round) const { return (round.value - 1) / rounds_per_epoch_; }
  bool ends_epoch(Round round) const { return round.value % rounds_per_epoch_ == 0; }
  // Steps of a round, and of the job before it. A round's steps count from 0.
  std::uint32_t steps(Round round) const;
  std::uint64_t steps_before(Round round) const;
  // Samples of a round, all its steps: over all ranks, or of one.
  std::uint32_t batch_size(Round round) const;
  std::uint32_t share_size(Round round, Rank rank) const;
  // Samples of a rank in one step of the round.
  std::uint32_t step_share_size(Round round, std::uint32_t step, Rank rank) const;

  // Indices of the samples of one rank in a step, or of one of its micro-batches. Valid until the next call for another
  // epoch.
  std::span<const std::uint32_t> share(Round round, Rank rank, std::uint32_t step = 0);
  std::span<const std::uint32_t> micro_batch(Round round, Rank rank, std::uint32_t micro, std::uint32_t step = 0);

  std::uint32_t accumulation() const { return options_.accumulation; }
  // The largest micro-batch there can be with these or more ranks.
  std::uint32_t micro_batch_limit() const;

 private:
  explicit Sampler(const SamplerOptions& options);
  struct Range {
    std::uint64_t begin = 0, size = 0;
  };
  // Within the epoch's permutation: of the whole round or of a step, and of a rank's share of a step.
  Range round_range(Round round) const;
  Range step_range(Round round, std::uint32_t step) const;
  Range share_range(Round round, std::uint32_t step, Rank rank) const;
  void shuffle_for(std::uint64_t epoch);

  SamplerOptions options_;
  std::uint64_t steps_per_epoch_, rounds_per_epoch_;
  std::uint64_t shuffled_epoch_ = 0;
  std::vector<std::uint32_t> permutation_;  // of shuffled_epoch_; empty before the first use
};

}  // namespace tributary::train

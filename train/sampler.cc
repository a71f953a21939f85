#include "train/sampler.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/assert.h"
#include "train/counter_rng.h"

namespace tributary::train {

namespace {

// Where part i of `parts` begins in `size` samples. Parts differ by one at most, and all are equal if parts divides
// size.
std::uint64_t part_begin(std::uint64_t size, std::uint64_t parts, std::uint64_t i) {
  return size * i / parts;
}

}  // namespace

std::uint64_t samples_sum(std::span<const std::uint32_t> samples) {
  const CounterRng mixed(0, kStreamSampleSums, 0);
  std::uint64_t sum = 0;
  for (const std::uint32_t sample : samples) sum += mixed.at(sample);
  return sum;
}

Result<Sampler> Sampler::make(const SamplerOptions& options) {
  if (options.samples == 0) return fail(ErrorCode::kInvalidArgument, "the training set has no samples");
  if (options.global_batch == 0)
    return fail(ErrorCode::kConfig, "train.global_batch = 0: a round needs a sample; use 1 or more");
  if (options.accumulation == 0) {
    return fail(ErrorCode::kConfig,
                "train.accumulation = 0: use 1 for no accumulation, or the number of micro-batches");
  }
  if (options.local_steps == 0) return fail(ErrorCode::kConfig, "local.steps = 0: a round needs a step; use 1 or more");
  if (options.world_size == 0) return fail(ErrorCode::kTopology, "world size = 0: a job needs a rank; use 1 or more");
  if (options.global_batch > options.samples) {
    return fail(ErrorCode::kConfig, "train.global_batch = " + std::to_string(options.global_batch) +
                                        " is more than the training set's " + std::to_string(options.samples) +
                                        " samples; make it smaller");
  }
  const std::uint64_t parts = std::uint64_t{options.world_size} * options.accumulation;
  if (options.global_batch % parts != 0 && !options.elastic) {
    const std::uint64_t fitting = std::max(options.global_batch / parts * parts, parts);
    return fail(ErrorCode::kConfig, "train.global_batch = " + std::to_string(options.global_batch) +
                                        " does not divide by world size " + std::to_string(options.world_size) +
                                        " * train.accumulation " + std::to_string(options.accumulation) +
                                        "; use for example " + std::to_string(fitting));
  }
  return Sampler(options);
}

Sampler::Sampler(const SamplerOptions& options)
    : options_(options),
      steps_per_epoch_((std::uint64_t{options.samples} + options.global_batch - 1) / options.global_batch),
      rounds_per_epoch_((steps_per_epoch_ + options.local_steps - 1) / options.local_steps) {}

void Sampler::set_world_size(std::uint32_t world_size) {
  TRIB_ASSERT(world_size > 0 && (options_.elastic || world_size == options_.world_size));
  options_.world_size = world_size;
}

std::uint32_t Sampler::steps(Round round) const {
  TRIB_ASSERT(round.value >= 1);
  const std::uint64_t first = (round.value - 1) % rounds_per_epoch_ * options_.local_steps;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(options_.local_steps, steps_per_epoch_ - first));
}

std::uint64_t Sampler::steps_before(Round round) const {
  TRIB_ASSERT(round.value >= 1);
  return epoch_of(round) * steps_per_epoch_ + (round.value - 1) % rounds_per_epoch_ * options_.local_steps;
}

Sampler::Range Sampler::round_range(Round round) const {
  const std::uint64_t begin = step_range(round, 0).begin;
  const Range last = step_range(round, steps(round) - 1);
  return {begin, last.begin + last.size - begin};
}

Sampler::Range Sampler::step_range(Round round, std::uint32_t step) const {
  TRIB_ASSERT(step < steps(round));
  const std::uint64_t begin = (steps_before(round) % steps_per_epoch_ + step) * options_.global_batch;
  return {begin, std::min<std::uint64_t>(options_.global_batch, options_.samples - begin)};
}

Sampler::Range Sampler::share_range(Round round, std::uint32_t step, Rank rank) const {
  TRIB_ASSERT(rank.value < options_.world_size);
  const Range batch = step_range(round, step);
  const std::uint64_t begin = part_begin(batch.size, options_.world_size, rank.value);
  const std::uint64_t end = part_begin(batch.size, options_.world_size, std::uint64_t{rank.value} + 1);
  return {batch.begin + begin, end - begin};
}

std::uint32_t Sampler::batch_size(Round round) const {
  return static_cast<std::uint32_t>(round_range(round).size);
}

std::uint32_t Sampler::share_size(Round round, Rank rank) const {
  // All batches but an epoch's last are full, so a rank's shares of them are equal.
  const std::uint32_t last = steps(round) - 1;
  const std::uint32_t of_last = step_share_size(round, last, rank);
  return last == 0 ? of_last : last * step_share_size(round, 0, rank) + of_last;
}

std::uint32_t Sampler::step_share_size(Round round, std::uint32_t step, Rank rank) const {
  return static_cast<std::uint32_t>(share_range(round, step, rank).size);
}

std::uint32_t Sampler::micro_batch_limit() const {
  // The last batch of an epoch is smaller than the others.
  const auto parts = [](std::uint32_t size, std::uint32_t into) { return (size + into - 1) / into; };
  return parts(parts(options_.global_batch, options_.world_size), options_.accumulation);
}

std::span<const std::uint32_t> Sampler::share(Round round, Rank rank, std::uint32_t step) {
  shuffle_for(epoch_of(round));
  const Range range = share_range(round, step, rank);
  return std::span(permutation_).subspan(range.begin, range.size);
}

std::span<const std::uint32_t> Sampler::micro_batch(Round round, Rank rank, std::uint32_t micro, std::uint32_t step) {
  TRIB_ASSERT(micro < options_.accumulation);
  const std::span<const std::uint32_t> all = share(round, rank, step);
  const std::uint64_t begin = part_begin(all.size(), options_.accumulation, micro);
  const std::uint64_t end = part_begin(all.size(), options_.accumulation, std::uint64_t{micro} + 1);
  return all.subspan(begin, end - begin);
}

void Sampler::shuffle_for(std::uint64_t epoch) {
  if (!permutation_.empty() && shuffled_epoch_ == epoch) return;
  // From the identity every time, not from the epoch before: the permutation must not depend on where the run began.
  permutation_.resize(options_.samples);
  std::iota(permutation_.begin(), permutation_.end(), 0u);
  const CounterRng rng(options_.seed, kStreamShuffle, epoch);
  std::uint64_t counter = 0;
  for (std::uint32_t left = options_.samples; left > 1; --left) {  // Fisher-Yates, Durstenfeld's order
    std::swap(permutation_[left - 1], permutation_[rng.below(left, counter)]);
  }
  shuffled_epoch_ = epoch;
}

}  // namespace tributary::train

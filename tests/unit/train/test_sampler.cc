#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "train/counter_rng.h"
#include "train/sampler.h"

namespace tributary::train::sampler_test {
namespace {

std::vector<std::uint32_t> copy(std::span<const std::uint32_t> samples) {
  return {samples.begin(), samples.end()};
}

Sampler make(const SamplerOptions& options) {
  return required(Sampler::make(options));
}

// Returns the samples of all ranks in an epoch, in the order of rounds and ranks.
std::vector<std::uint32_t> whole_epoch(Sampler& sampler, std::uint32_t world_size, std::uint64_t epoch) {
  std::vector<std::uint32_t> all;
  for (std::uint64_t i = 1; i <= sampler.rounds_per_epoch(); ++i) {
    const Round round(epoch * sampler.rounds_per_epoch() + i);
    CHECK(sampler.epoch_of(round) == epoch);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      const auto share = sampler.share(round, Rank(rank));
      all.insert(all.end(), share.begin(), share.end());
    }
  }
  return all;
}

TEST_CASE("Counter-based random numbers stay what they are") {
  // Changing them would change every model that was ever trained from a seed.
  const CounterRng rng(1, kStreamShuffle, 0);
  CHECK(rng.at(0) == 0xc1d0439c2e54b27eull);
  CHECK(rng.at(1) == 0xe52fffa4db987f10ull);
  CHECK(CounterRng(1, kStreamInitialValues, 0).at(0) == 0x75693551cf81461cull);
}

TEST_CASE("Bounded random numbers are in range and reach every value about equally often") {
  const CounterRng rng(5, kStreamShuffle, 3);
  std::uint64_t counter = 0;
  std::vector<int> seen(7);
  for (int i = 0; i < 70'000; ++i) {
    const std::uint32_t value = rng.below(7, counter);
    REQUIRE(value < 7);
    ++seen[value];
  }
  for (const int count : seen) CHECK(count == doctest::Approx(10'000).epsilon(0.05));
  CHECK(rng.below(1, counter) == 0);
}

TEST_CASE("Symmetric random numbers fill their range and have mean 0") {
  const CounterRng rng(5, kStreamInitialValues, 0);
  double sum = 0.0;
  float low = 1.0f, high = -1.0f;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const float value = rng.symmetric(i);
    sum += value;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  CHECK(low >= -1.0f);
  CHECK(low < -0.999f);
  CHECK(high < 1.0f);
  CHECK(high > 0.999f);
  CHECK(std::abs(sum / 100'000) < 0.01);
}

TEST_CASE("Every sample comes exactly once an epoch over all ranks, whatever the sizes") {
  const CounterRng rng(99, 7, 0);
  std::uint64_t counter = 0;
  for (int trial = 0; trial < 300; ++trial) {
    SamplerOptions options;
    options.world_size = 1 + rng.below(9, counter);
    options.accumulation = 1 + rng.below(4, counter);
    options.global_batch = options.world_size * options.accumulation * (1 + rng.below(6, counter));
    options.samples = options.global_batch + rng.below(500, counter);
    options.seed = rng.at(counter++);
    CAPTURE(options.samples);
    CAPTURE(options.global_batch);
    CAPTURE(options.world_size);
    CAPTURE(options.accumulation);
    Sampler sampler = make(options);
    for (const std::uint64_t epoch : {0u, 1u}) {
      std::vector<std::uint32_t> all = whole_epoch(sampler, options.world_size, epoch);
      std::sort(all.begin(), all.end());
      std::vector<std::uint32_t> expected(options.samples);
      std::iota(expected.begin(), expected.end(), 0u);
      REQUIRE(all == expected);
    }
  }
}

TEST_CASE("Shares and micro-batches differ by one sample at most, and micro-batches make up the share in order") {
  const CounterRng rng(98, 7, 0);
  std::uint64_t counter = 0;
  for (int trial = 0; trial < 200; ++trial) {
    SamplerOptions options;
    options.world_size = 1 + rng.below(7, counter);
    options.accumulation = 1 + rng.below(5, counter);
    options.global_batch = options.world_size * options.accumulation * (1 + rng.below(5, counter));
    options.samples = options.global_batch + rng.below(300, counter);
    Sampler sampler = make(options);
    const Round first(1);
    const Round last(sampler.rounds_per_epoch());
    for (const Round round : {first, last}) {
      std::uint32_t total = 0, least = UINT32_MAX, most = 0;
      for (std::uint32_t r = 0; r < options.world_size; ++r) {
        const Rank rank(r);
        const std::vector<std::uint32_t> share = copy(sampler.share(round, rank));
        const auto size = static_cast<std::uint32_t>(share.size());
        CHECK(size == sampler.share_size(round, rank));
        total += size;
        least = std::min(least, size);
        most = std::max(most, size);
        std::vector<std::uint32_t> joined;
        std::uint32_t micro_least = UINT32_MAX, micro_most = 0;
        for (std::uint32_t m = 0; m < options.accumulation; ++m) {
          const auto micro = sampler.micro_batch(round, rank, m);
          joined.insert(joined.end(), micro.begin(), micro.end());
          micro_least = std::min(micro_least, static_cast<std::uint32_t>(micro.size()));
          micro_most = std::max(micro_most, static_cast<std::uint32_t>(micro.size()));
        }
        CHECK(joined == share);
        CHECK(micro_most - micro_least <= 1);
        CHECK(micro_most <= sampler.micro_batch_limit());
      }
      CHECK(total == sampler.batch_size(round));
      CHECK(most - least <= 1);
    }
    CHECK(sampler.batch_size(first) == options.global_batch);
    CHECK(sampler.ends_epoch(last));
    CHECK(sampler.share_size(first, Rank(0)) == options.global_batch / options.world_size);
  }
}

TEST_CASE("The last batch of an epoch may leave ranks without samples") {
  Sampler sampler = make({.samples = 9, .global_batch = 8, .world_size = 4, .accumulation = 2, .seed = 1});
  REQUIRE(sampler.rounds_per_epoch() == 2);
  std::uint32_t without = 0;
  for (std::uint32_t rank = 0; rank < 4; ++rank) without += sampler.share_size(Round(2), Rank(rank)) == 0 ? 1 : 0;
  CHECK(without == 3);
}

TEST_CASE("A round's samples do not depend on the rounds asked for before") {
  const SamplerOptions options{.samples = 1000, .global_batch = 64, .world_size = 4, .accumulation = 1, .seed = 7};
  Sampler straight = make(options);
  std::vector<std::vector<std::uint32_t>> shares;
  for (std::uint64_t r = 1; r <= 40; ++r) shares.push_back(copy(straight.share(Round(r), Rank(2))));
  Sampler resumed = make(options);
  for (const std::uint64_t r : {40u, 17u, 33u, 1u, 16u}) CHECK(copy(resumed.share(Round(r), Rank(2))) == shares[r - 1]);
}

TEST_CASE("A round's global batch does not depend on how many ranks share it") {
  std::vector<std::vector<std::uint32_t>> batches;
  for (const std::uint32_t world_size : {1u, 2u, 4u, 8u}) {
    Sampler sampler =
        make({.samples = 203, .global_batch = 16, .world_size = world_size, .accumulation = 1, .seed = 3});
    batches.push_back(whole_epoch(sampler, world_size, 1));
  }
  for (const auto& batch : batches) CHECK(batch == batches[0]);
}

TEST_CASE("Epochs and seeds have orders of their own") {
  const SamplerOptions options{.samples = 500, .global_batch = 50, .world_size = 1, .accumulation = 1, .seed = 3};
  Sampler sampler = make(options);
  const auto first = whole_epoch(sampler, 1, 0);
  const auto second = whole_epoch(sampler, 1, 1);
  CHECK(first != second);
  SamplerOptions other = options;
  other.seed = 4;
  Sampler reseeded = make(other);
  CHECK(whole_epoch(reseeded, 1, 0) != first);
  CHECK_FALSE(std::is_sorted(first.begin(), first.end()));
}

TEST_CASE("The order of a shuffled epoch stays what it is") {
  Sampler sampler = make({.samples = 10, .global_batch = 10, .world_size = 1, .accumulation = 1, .seed = 1});
  CHECK(copy(sampler.share(Round(1), Rank(0))) == std::vector<std::uint32_t>{1, 0, 5, 6, 2, 3, 4, 9, 8, 7});
}

TEST_CASE("With local steps every sample comes once an epoch, and steps see what rounds of one step see") {
  const CounterRng rng(97, 7, 0);
  std::uint64_t counter = 0;
  for (int trial = 0; trial < 200; ++trial) {
    SamplerOptions options;
    options.world_size = 1 + rng.below(5, counter);
    options.accumulation = 1 + rng.below(3, counter);
    options.global_batch = options.world_size * options.accumulation * (1 + rng.below(4, counter));
    options.samples = options.global_batch + rng.below(300, counter);
    options.seed = rng.at(counter++);
    Sampler single = make(options);
    options.local_steps = 1 + rng.below(12, counter);
    CAPTURE(options.samples);
    CAPTURE(options.global_batch);
    CAPTURE(options.local_steps);
    Sampler sampler = make(options);
    std::uint64_t before = 0;
    for (std::uint64_t r = 1; r <= 2 * sampler.rounds_per_epoch(); ++r) {
      const Round round(r);
      CHECK(sampler.epoch_of(round) == (r > sampler.rounds_per_epoch() ? 1 : 0));
      CHECK(sampler.steps_before(round) == before);
      const std::uint32_t steps = sampler.steps(round);
      CHECK(steps >= 1);
      CHECK(steps <= options.local_steps);
      // Only an epoch's last round may be shorter.
      if (!sampler.ends_epoch(round)) CHECK(steps == options.local_steps);
      std::uint32_t batch = 0;
      for (std::uint32_t k = 0; k < options.world_size; ++k) {
        const Rank rank(k);
        std::uint32_t share = 0;
        for (std::uint32_t step = 0; step < steps; ++step) {
          const Round alone(before + step + 1);
          REQUIRE(copy(sampler.share(round, rank, step)) == copy(single.share(alone, rank)));
          REQUIRE(sampler.step_share_size(round, step, rank) == single.share_size(alone, rank));
          for (std::uint32_t micro = 0; micro < options.accumulation; ++micro) {
            REQUIRE(copy(sampler.micro_batch(round, rank, micro, step)) ==
                    copy(single.micro_batch(alone, rank, micro)));
          }
          share += single.share_size(alone, rank);
        }
        CHECK(sampler.share_size(round, rank) == share);
        batch += share;
      }
      CHECK(sampler.batch_size(round) == batch);
      before += steps;
    }
    CHECK(before == 2 * single.rounds_per_epoch());
  }
}

TEST_CASE("More local steps than an epoch has make one round of it") {
  Sampler sampler = make(
      {.samples = 100, .global_batch = 8, .world_size = 2, .accumulation = 1, .local_steps = 1'000'000, .seed = 1});
  CHECK(sampler.rounds_per_epoch() == 1);
  CHECK(sampler.steps(Round(3)) == 13);
  CHECK(sampler.steps_before(Round(3)) == 26);
  CHECK(sampler.batch_size(Round(3)) == 100);
}

TEST_CASE("Impossible batches are refused with the value and what would be right") {
  const auto refused = [](const SamplerOptions& options) {
    const auto sampler = failure_of(Sampler::make(options));
    return sampler.message;
  };
  const std::string uneven = refused({.samples = 100, .global_batch = 30, .world_size = 4, .accumulation = 2});
  CHECK(testing::contains(uneven, "train.global_batch = 30"));
  CHECK(testing::contains(uneven, "world size 4"));
  CHECK(testing::contains(uneven, "use for example 24"));
  const std::string large = refused({.samples = 100, .global_batch = 128});
  CHECK(testing::contains(large, "train.global_batch = 128"));
  CHECK(testing::contains(large, "100 samples"));
  CHECK(testing::contains(refused({.samples = 100, .global_batch = 0}), "global_batch = 0"));
  CHECK(testing::contains(refused({.samples = 100, .accumulation = 0}), "accumulation = 0"));
  CHECK(testing::contains(refused({.samples = 0}), "no samples"));
}

}  // namespace
}  // namespace tributary::train::sampler_test

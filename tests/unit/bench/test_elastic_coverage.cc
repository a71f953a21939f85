#include <doctest/doctest.h>

#include "bench/elastic_coverage.h"

namespace tributary::bench::elastic_coverage_test {
namespace {

using train::Sampler;

Sampler sampler_of(std::uint32_t world_size, std::uint32_t local_steps = 1) {
  auto sampler = Sampler::make({.samples = 100,
                                .global_batch = 30,
                                .world_size = world_size,
                                .accumulation = 2,
                                .local_steps = local_steps,
                                .seed = 3,
                                .elastic = true});
  REQUIRE(sampler.has_value());
  return std::move(*sampler);
}

ProgressReport report(Sampler& sampler, std::uint32_t world_size, std::uint32_t rank, std::uint64_t round,
                      std::uint64_t resumed = 0) {
  ProgressReport one{.rank = rank, .world_size = world_size, .resumed = resumed, .round = round};
  for (std::uint32_t step = 0; step < sampler.steps(Round(round)); ++step) {
    one.samples_sum += train::samples_sum(sampler.share(Round(round), Rank(rank), step));
  }
  return one;
}

TEST_CASE(
    "shares of any number of ranks add up to the whole round, in every round of two epochs, with local steps too") {
  for (const std::uint32_t local_steps : {1u, 3u}) {
    ElasticCoverage coverage(sampler_of(1, local_steps));
    std::uint64_t rounds = 0;
    for (const std::uint32_t world_size : {1u, 2u, 3u, 7u}) {
      Sampler sampler = sampler_of(world_size, local_steps);
      rounds = 2 * sampler.rounds_per_epoch();
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        for (std::uint32_t rank = 0; rank < world_size; ++rank) {
          coverage.take(report(sampler, world_size, rank, round));
        }
      }
    }
    const auto counts = coverage.counts();
    CHECK(counts.at("rounds_whole") == rounds);
    CHECK(counts.at("rounds_wrong") == 0);
    CHECK(counts.at("rounds_dealt_twice") == rounds);
    CHECK(coverage.samples(0, rounds) == 200);
    CHECK(coverage.samples(rounds - 1, rounds) == sampler_of(1, local_steps).batch_size(Round(rounds)));
  }
}

TEST_CASE("samples that are dealt twice or not at all, or are another round's, are found") {
  ElasticCoverage coverage(sampler_of(1));
  Sampler two = sampler_of(2);
  // As many samples as they should be, but both have the first share.
  ProgressReport first = report(two, 2, 0, 1), second = first;
  second.rank = 1;
  coverage.take(first);
  coverage.take(second);
  // Reports of the previous round.
  for (const std::uint32_t rank : {0u, 1u}) {
    ProgressReport old = report(two, 2, rank, 1);
    old.round = 2;
    coverage.take(old);
  }
  for (const std::uint32_t rank : {0u, 1u}) coverage.take(report(two, 2, rank, 3));
  const auto counts = coverage.counts();
  CHECK(counts.at("rounds_wrong") == 2);
  CHECK(counts.at("rounds_whole") == 1);
}

TEST_CASE("ranks of different views are not put together") {
  ElasticCoverage coverage(sampler_of(1));
  Sampler two = sampler_of(2);
  coverage.take(report(two, 2, 0, 3, 0));
  coverage.take(report(two, 2, 1, 3, 2));  // of a view that began later
  auto counts = coverage.counts();
  CHECK(counts.at("rounds_whole") == 0);
  CHECK(counts.at("rounds_wrong") == 0);
  CHECK(counts.at("rounds_dealt_twice") == 1);
  coverage.take(report(two, 2, 0, 3, 2));
  counts = coverage.counts();
  CHECK(counts.at("rounds_whole") == 1);
  CHECK(counts.at("rounds_seen") == 1);
}

}  // namespace
}  // namespace tributary::bench::elastic_coverage_test

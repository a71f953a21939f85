// The simulator's 1000 seeds, and planted bugs that it must find.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "tests/sim/first_seed.h"
#include "tests/sim/simulation.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kSeedsPerCase = 250;
constexpr std::uint64_t kSeedsForMutation = 200;

void run_seeds(std::uint64_t first) {
  std::uint64_t resends = 0, snapshots = 0, withheld = 0, restarted = 0, clipped = 0, skipped = 0;
  for (std::uint64_t seed = first; seed < first + kSeedsPerCase; ++seed) {
    const Outcome outcome = run(seed);
    if (!outcome.ok) {
      FAIL_CHECK(outcome.failure << "\n  " << outcome.scenario.describe()
                                 << "\n  replay: build/release/bin/simulate --seeds 1 --from " << seed);
    }
    resends += outcome.resends;
    snapshots += outcome.snapshots;
    withheld += outcome.withheld;
    clipped += outcome.clipped;
    skipped += outcome.skipped;
    restarted += outcome.restarted ? 1 : 0;
  }
  // Runs in which nothing was lost, captured, withheld, clipped, skipped or gone on with would prove less than they
  // say.
  CHECK(resends > 0);
  CHECK(snapshots > 0);
  CHECK(withheld > 0);
  CHECK(clipped > 0);
  CHECK(skipped > 0);
  CHECK(restarted > 0);
}

// The first seed that finds the planted bug; kSeedsForMutation if none does.
std::uint64_t first_seed_that_finds(Mutation mutation) {
  return first_seed_that_fails(kSeedsForMutation, [&](std::uint64_t seed) { return run(seed, mutation); });
}

}  // namespace

TEST_CASE("seeds 0 to 249 end as they must") {
  run_seeds(0);
}
TEST_CASE("seeds 250 to 499 end as they must") {
  run_seeds(250);
}
TEST_CASE("seeds 500 to 749 end as they must") {
  run_seeds(500);
}
TEST_CASE("seeds 750 to 999 end as they must") {
  run_seeds(750);
}

TEST_CASE("a sum in another order than the tree's is found") {
  CHECK(first_seed_that_finds(Mutation::kArrivalOrderSum) < kSeedsForMutation);
}

TEST_CASE("a push that is taken for another node's is found") {
  CHECK(first_seed_that_finds(Mutation::kForgetDuplicates) < kSeedsForMutation);
}

TEST_CASE("a step that writes into a buffer somebody still reads is found") {
  CHECK(first_seed_that_finds(Mutation::kWriteInPlace) < kSeedsForMutation);
}

TEST_CASE("a bound on staleness that is a clock too loose is found") {
  CHECK(first_seed_that_finds(Mutation::kLooseBound) < kSeedsForMutation);
}

TEST_CASE("a push with a clock that is applied twice is found") {
  CHECK(first_seed_that_finds(Mutation::kApplyTwice) < kSeedsForMutation);
}

TEST_CASE("a restored chunk that has forgotten which pushes it has is found") {
  CHECK(first_seed_that_finds(Mutation::kForgetClocks) < kSeedsForMutation);
}

TEST_CASE("a lane that does not wait for the gate is found") {
  CHECK(first_seed_that_finds(Mutation::kBeforeTheGate) < kSeedsForMutation);
}

TEST_CASE("a seed is the same run every time") {
  const Outcome once = run(42), again = run(42);
  CHECK(once.ok);
  CHECK(once.events == again.events);
  CHECK(once.virtual_ns == again.virtual_ns);
  CHECK(once.messages == again.messages);
  CHECK(once.scenario.describe() == again.scenario.describe());
}

}  // namespace tributary::sim

// The cluster simulator's first 3000 seeds; `simulate` runs others.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "tests/sim/cluster_simulation.h"

namespace tributary::sim {
namespace {

// Sanitizers are some twenty times slower.
#if defined(TRIBUTARY_SANITIZED)
constexpr std::uint64_t kSeedsPerCase = 35;
#else
constexpr std::uint64_t kSeedsPerCase = 1000;
#endif

void run_seeds(std::uint64_t first) {
  ClusterOutcome total;
  std::uint64_t refused = 0, replicas = 0, shared = 0;
  for (std::uint64_t seed = first; seed < first + kSeedsPerCase; ++seed) {
    const ClusterOutcome outcome = run_cluster(seed);
    if (!outcome.ok) {
      FAIL_CHECK(outcome.failure << "\n  " << outcome.scenario.describe()
                                 << "\n  replay: build/release/bin/simulate --trace --seeds 1 --from " << seed);
    }
    total.kills += outcome.kills;
    total.commits += outcome.commits;
    total.kept += outcome.kept;
    total.drained += outcome.drained;
    total.unsaved += outcome.unsaved;
    total.kept_saved += outcome.kept_saved;
    total.restored += outcome.restored;
    total.redone += outcome.redone;
    total.memberships += outcome.memberships;
    total.dealt += outcome.dealt;
    total.ordered += outcome.ordered;
    total.copied_parts += outcome.copied_parts;
    total.inherited += outcome.inherited;
    total.gathered += outcome.gathered;
    total.resends += outcome.resends;
    total.states += outcome.states;
    total.values += outcome.values;
    total.values_again += outcome.values_again;
    total.large_parts += outcome.large_parts;
    total.moves += outcome.moves;
    total.first_states += outcome.first_states;
    total.saved += outcome.saved;
    total.saved_parts += outcome.saved_parts;
    total.scheduled += outcome.scheduled;
    total.from_memory += outcome.from_memory;
    total.brought_back += outcome.brought_back;
    replicas += outcome.ok && outcome.scenario.mode == Mode::kAllreduce ? outcome.views : 0;
    refused += outcome.refused ? 1 : 0;
    shared += outcome.scenario.beside.empty() ? 0 : 1;  // two jobs on the same servers
  }
  // Runs in which these never happened would prove less than they say.
  CHECK(total.kills > kSeedsPerCase);
  CHECK(total.commits > kSeedsPerCase);
  CHECK(total.states > 0);
  CHECK(total.values > kSeedsPerCase);
  if (kSeedsPerCase < 1000) return;  // too few for what is rare
  CHECK(total.kept > 0);
  CHECK(total.restored > 0);
  CHECK(shared > kSeedsPerCase / 10);
  CHECK(total.memberships > 0);
  CHECK(total.dealt > 0);
  CHECK(total.ordered > 0);
  CHECK(total.copied_parts > 0);
  CHECK(total.large_parts > 0);
  CHECK(total.moves > 0);
  CHECK(total.first_states > 0);
  CHECK(total.values_again > 0);
  CHECK(total.resends > 0);
  CHECK(total.redone > 0);
  CHECK(total.drained > kSeedsPerCase / 10);
  CHECK(total.unsaved > 0);
  CHECK(total.kept_saved > 0);
  CHECK(total.inherited > 0);
  CHECK(total.gathered > 0);
  CHECK(refused > 0);
  CHECK(replicas > kSeedsPerCase / 10);
  CHECK(total.saved > 0);
  CHECK(total.saved_parts > 0);
  CHECK(total.scheduled > 0);
  CHECK(total.from_memory > 0);
  CHECK(total.brought_back > 0);
}

}  // namespace

TEST_CASE("clusters of seeds 0 to 999 come to their end whoever dies") {
  run_seeds(0);
}
TEST_CASE("clusters of seeds 1000 to 1999 come to their end whoever dies") {
  run_seeds(1000);
}
TEST_CASE("clusters of seeds 2000 to 2999 come to their end whoever dies") {
  run_seeds(2000);
}

TEST_CASE("seeds beyond those that failed once come to their end") {
  // 6490: the last answer to a node is refused, and its view ends. 37200: a restored job had the id of a restore that
  // failed. 30480: a server that is brought up to the others ends with a loss. 72280: a node cuts the view that it
  // joins. 92717: a server that keeps less than the others. 84562: a load fails between views. 19781: a job that had
  // ended is restored. 21344: a job ends with the round of a snapshot that was named too late.
  // 71487: the large part of what the first rank kept has to come before others get its whole state. 450809: the only
  // copy of a part is on a server that is away. 510419: a snapshot is committed after nodes have said what they keep.
  for (const std::uint64_t seed : {6490, 19781, 21344, 30480, 37200, 71487, 72280, 84562, 92717, 450809, 510419}) {
    const ClusterOutcome outcome = run_cluster(seed);
    CHECK_MESSAGE(outcome.ok, outcome.failure);
  }
}

TEST_CASE("a cluster's seed is the same run every time") {
  const ClusterOutcome once = run_cluster(42), again = run_cluster(42);
  CHECK(once.events == again.events);
  CHECK(once.virtual_ns == again.virtual_ns);
  CHECK(once.packets == again.packets);
  CHECK(once.scenario.describe() == again.scenario.describe());
}

}  // namespace tributary::sim

// Compute kinds of ranks (common/wire/compute_kinds.h): compared when a job opens, with other nodes and with its
// record.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/expect.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_compute_kinds_test {

using namespace testing;

namespace {

const std::string kHaswell = "torch 2.13.0 Haswell", kZen = "torch 2.13.0 Zen";

JoinOptions computing(const ComputeKinds& kinds, std::uint32_t node = 0, std::uint32_t nodes = 1) {
  JoinOptions options;
  options.node = node;
  options.nodes = nodes;
  options.computes_with = kinds;
  return options;
}

bool warned(const Cluster& cluster, const std::string& words) {
  return std::ranges::any_of(cluster.warnings, [&](const std::string& line) { return contains(line, words); });
}

}  // namespace

TEST_CASE("nodes that compute with one kind of kernels, or do not say, are not worth a word") {
  FullCluster cluster({.workers = 2});
  cluster.join(0, computing({kZen}, 0, 2));
  SUBCASE("the same") {
    cluster.join(1, computing({kZen}, 1, 2));
  }
  SUBCASE("nothing") {
    cluster.join(1, {.node = 1, .nodes = 2});
  }
  CHECK(cluster.phase() == "opening");
  CHECK_FALSE(warned(cluster, "kind of kernels"));
  CHECK(cluster.job().record.computed_with == ComputeKinds{kZen});
}

TEST_CASE("nodes that compute with different kernels are told of once, with who has which") {
  FullCluster cluster({.workers = 2});
  cluster.join(0, computing({kZen}, 0, 2));
  cluster.join(1, computing({kHaswell, kZen}, 1, 2));
  cluster.all_ready();
  CHECK(warned(cluster, kHaswell + " on node 1; " + kZen + " on node 0, 1"));
  CHECK(cluster.job().record.computed_with == ComputeKinds{kHaswell, kZen});
  CHECK(cluster.registry.at(cluster.open().job.value).computed_with.size() == 2);
  // A third kind, after rounds that count: said again. The same ones: not.
  for (const std::uint32_t w : {0u, 1u}) cluster.leave(w, LeaveKind::kStopped, 40);
  cluster.all_done(40);
  cluster.warnings.clear();
  cluster.join(0, computing({kZen}, 0, 2));
  cluster.join(1, computing({kZen}, 1, 2));
  CHECK(cluster.phase() == "opening");
  CHECK_FALSE(warned(cluster, "kind of kernels"));
  CHECK(cluster.job().record.computed_with.size() == 2);
}

TEST_CASE("a job that goes on with other kernels than before is told of, also after the coordinator was away") {
  TrainingCluster before({.workers = 1}, computing({kZen}));
  before.stop_at(0, 40);
  Cluster cluster(2, before.records(), 8);
  restarted(cluster, {StoredJob{before.open().job, "mnist", 0, {Round(40)}}});
  cluster.join(0, computing({kHaswell}));
  CHECK(warned(cluster, kHaswell + " on node 0; " + kZen + " before this view"));
}

TEST_CASE("a training that begins at its first round has none before") {
  TrainingCluster cluster({.workers = 1}, computing({kZen}));
  cluster.leave(0, LeaveKind::kFailed, 3);  // nothing of it was kept
  REQUIRE(cluster.phase() == "idle");
  cluster.join(0, computing({kHaswell}));
  CHECK(cluster.phase() == "opening");
  CHECK_FALSE(warned(cluster, "kind of kernels"));
  CHECK(cluster.job().record.computed_with == ComputeKinds{kHaswell});
}

}  // namespace tributary::coordinator_compute_kinds_test

// CoordinatorCore: nodes whose ranks hold parts of the model (docs/model-parallel.md).
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_parts_test {

using namespace testing;

namespace {

// Two stages, two ranks a node.
JoinOptions part(std::vector<std::uint32_t> model_ranks) {
  JoinOptions options;
  options.nodes = 2;
  options.tensors = {{"first", {100'000}, 0, {0}}, {"second", {100'000}, 0, {1}}};
  options.model_ranks = std::move(model_ranks);
  return options;
}

void join_both(Cluster& cluster, JoinOptions one, JoinOptions other) {
  cluster.everybody(2);
  other.node = 1;
  cluster.join(0, one);
  cluster.join(1, other);
}

// Returns the refusal that both workers get.
std::string refusal(Cluster& cluster) {
  std::string text;
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto error = cluster.only<ControlError>(worker_peer(w));
    if (!error || error->code != ErrorCode::kTopology) return "(not refused)";
    text = error->message;
  }
  return text;
}

}  // namespace

TEST_CASE("servers and workers are told the model ranks of all ranks of the view") {
  Cluster cluster;
  join_both(cluster, part({0, 0}), part({1, 1}));
  const std::vector<std::uint32_t> all = {0, 0, 1, 1};
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto open = required(cluster.only<OpenJob>(server_peer(i)));
    CHECK(open.model_ranks == all);
    CHECK(open.tensors[1].holders == std::vector<std::uint32_t>{1});
  }
  cluster.all_ready();
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto welcome = required(cluster.only<JobWelcome>(worker_peer(w)));
    CHECK(welcome.model_ranks == all);
  }
}

TEST_CASE("where all hold the whole model nothing is said of parts") {
  Cluster cluster;
  JoinOptions whole = part({0, 0});
  whole.tensors = {{"w", {100'000}}};
  join_both(cluster, whole, whole);
  CHECK(required(cluster.only<OpenJob>(server_peer(0))).model_ranks.empty());
}

TEST_CASE("parts that make no whole replicas are refused, and every node hears why") {
  Cluster cluster;
  join_both(cluster, part({0, 0}), part({0, 1}));
  CHECK(contains(refusal(cluster), "job 'mnist': 1 ranks have model rank 1, and 3 have model rank 0"));
}

TEST_CASE("parts need rounds") {
  Cluster cluster;
  JoinOptions one = part({0, 1});
  one.config.mode = Mode::kSsp;
  join_both(cluster, one, one);
  CHECK(contains(refusal(cluster), "not with mode = \"ssp\""));
}

TEST_CASE("in an elastic job every node holds the whole model") {
  Cluster across, inside;
  JoinOptions first = part({0, 0}), second = part({1, 1}), both = part({0, 1});
  for (JoinOptions* options : {&first, &second, &both}) {
    options->config.membership.on_worker_loss = OnLoss::kContinue;
  }
  join_both(across, first, second);
  CHECK(contains(refusal(across), "put all ranks of a replica on one node"));
  join_both(inside, both, both);
  CHECK(inside.only<OpenJob>(server_peer(0)));
}

TEST_CASE("a node that says model ranks for other ranks than it has is refused") {
  FullCluster cluster({.workers = 2});
  cluster.join(0, part({0, 1, 0}));
  check_error(cluster, worker_peer(0), ErrorCode::kMalformed, {});
}

}  // namespace tributary::coordinator_parts_test

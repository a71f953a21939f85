// The round gate of a job, as the coordinator runs it.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_gate_test {

using namespace testing;

namespace {

JoinOptions gated() {
  JoinOptions options;
  options.config.gate.clip_norm = 1.0;
  options.config.gate.loss_scale = "dynamic";
  return options;
}

RoundFacts facts_of(const Cluster& cluster, std::uint16_t shard, std::uint64_t round, double squares) {
  RoundFacts facts;
  facts.job = cluster.open().job;
  facts.view = cluster.open().view;
  facts.round = Round(round);
  facts.before = GateDecision{GateVerdict::kVoid, 0.0, 0.0, 4.0f, 0};
  for (std::uint32_t c = 0; c < cluster.open().owners.size(); ++c) {
    if (cluster.open().owners[c].shard.value == shard) facts.chunks.push_back({ChunkIndex(c), {squares, 1, true}});
  }
  return facts;
}

}  // namespace

TEST_CASE("all servers hear one decision, made of all shards' facts") {
  TrainingCluster cluster({.workers = 1}, gated());
  cluster.say(server_peer(0), facts_of(cluster, 0, 1, 0.25));
  CHECK(cluster.count<RoundDecision>() == 0);
  cluster.say(server_peer(1), facts_of(cluster, 1, 1, 0.25));
  CHECK(cluster.count<RoundDecision>() == 2);
  const auto decision = required(cluster.only<RoundDecision>(server_peer(1)));
  CHECK(decision.round == Round(1));
  CHECK(decision.view == cluster.open().view);
  CHECK(decision.decision.loss_scale == 4.0f);
  CHECK(decision.decision.good_rounds == 1);
  cluster.sent.clear();
  cluster.say(server_peer(0), facts_of(cluster, 0, 1, 0.25));  // the decision was lost on its way
  CHECK(cluster.count<RoundDecision>() == 1);
  CHECK(cluster.only<RoundDecision>(server_peer(0))->decision == decision.decision);
}

TEST_CASE("facts of a view that is over, or of a job without a gate, are not looked at") {
  TrainingCluster cluster({.workers = 1}, gated());
  RoundFacts old = facts_of(cluster, 0, 1, 1.0);
  old.view = ViewId(old.view.value + 1);
  cluster.say(server_peer(0), old);
  cluster.say(worker_peer(0), facts_of(cluster, 0, 1, 1.0));
  cluster.say(server_peer(1), facts_of(cluster, 1, 1, 1.0));
  CHECK(cluster.count<RoundDecision>() == 0);
  TrainingCluster plain(1);
  for (std::uint16_t shard = 0; shard < 2; ++shard) plain.say(server_peer(shard), facts_of(plain, shard, 1, 1.0));
  CHECK(plain.count<RoundDecision>() == 0);
}

TEST_CASE("the next view knows nothing of the decisions before, but from those who kept them") {
  TrainingCluster cluster({.workers = 1}, gated());
  for (std::uint16_t shard = 0; shard < 2; ++shard) cluster.say(server_peer(shard), facts_of(cluster, shard, 1, 1.0));
  REQUIRE(cluster.count<RoundDecision>() == 2);
  cluster.keep({0, 1}, {0, 0});
  cluster.leave(0, LeaveKind::kFailed, 0);
  cluster.run(1, gated());
  // Server 1 has not heard of the decision, and goes on with other facts: server 0 has applied it.
  RoundFacts known = facts_of(cluster, 0, 1, 0.0);
  known.chunks.clear();
  known.decided = GateDecision{GateVerdict::kClipped, 0.125, 8.0, 4.0f, 1};
  cluster.say(server_peer(0), known);
  CHECK(cluster.count<RoundDecision>() == 0);
  cluster.say(server_peer(1), facts_of(cluster, 1, 1, 9.0));
  REQUIRE(cluster.count<RoundDecision>() == 1);
  CHECK(cluster.only<RoundDecision>(server_peer(1))->decision == known.decided);
}

}  // namespace tributary::coordinator_gate_test

// CoordinatorCore: ranks' states with a snapshot, into the record, and back to the ranks.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/large_states.h"

namespace tributary::coordinator_ranks_test {

using namespace testing;

namespace {

void keep(Cluster& cluster, std::uint32_t w, std::uint32_t local_rank, std::uint64_t round, const std::string& text) {
  cluster.say(
      worker_peer(w),
      NodeRankState{cluster.open().job, cluster.open().view, NodeRank(w), local_rank, {Round(round), bytes_of(text)}});
}

JobWelcome welcomed(Cluster& cluster, std::uint32_t nodes) {
  JoinOptions options;
  options.nodes = nodes;
  for (std::uint32_t w = 0; w < nodes; ++w) {
    options.node = w;
    cluster.join(w, options);
  }
  cluster.all_ready();
  return required(cluster.only<JobWelcome>(worker_peer(1)));
}

}  // namespace

TEST_CASE("what ranks keep is committed with the snapshot of their round, and comes back with it") {
  TrainingCluster cluster(2);
  keep(cluster, 1, 1, 39, "too early");
  keep(cluster, 0, 0, 40, "zero");
  keep(cluster, 1, 1, 40, "three");
  keep(cluster, 1, 1, 41, "of an open round");
  cluster.stop_at(0, 40);
  const RankStates& states = cluster.record().rank_states;
  CHECK(states.size() == 2);
  CHECK(states.at({0, 0}) == bytes_of("zero"));
  CHECK(states.at({1, 1}) == bytes_of("three"));
  CHECK(cluster.registry.begin()->second.rank_states == states);

  cluster.sent.clear();
  const JobWelcome welcome = welcomed(cluster, 2);
  REQUIRE(welcome.rank_states.size() == 2);
  CHECK(welcome.rank_states[0].empty());
  CHECK(welcome.rank_states[1] == bytes_of("three"));
  CHECK(cluster.only<JobWelcome>(worker_peer(0))->rank_states.size() == 1);
}

TEST_CASE("a state that comes after its snapshot is committed all the same") {
  TrainingCluster cluster(2);
  cluster.stop_at(0, 40);
  CHECK(cluster.record().rank_states.empty());
  keep(cluster, 1, 0, 40, "late");
  keep(cluster, 0, 1, 40, "as late");
  CHECK(cluster.registry.begin()->second.rank_states.empty());  // they are written together
  cluster.tick(cluster.now + 1000);
  CHECK(cluster.registry.begin()->second.rank_states.size() == 2);
  CHECK(cluster.registry.begin()->second.rank_states.at({1, 0}) == bytes_of("late"));
}

TEST_CASE("a view that begins elsewhere than at the snapshot brings nothing back") {
  TrainingCluster cluster(2);
  keep(cluster, 1, 0, 40, "of the snapshot");
  cluster.stop_at(0, 40);
  cluster.sent.clear();
  CHECK(welcomed(cluster, 2).rank_states.size() == 1);
  for (std::uint16_t i = 0; i < 2; ++i) cluster.keep(i, 50, 51);
  cluster.leave(0, LeaveKind::kFailed, 50, "a trainer died");
  cluster.sent.clear();
  const JobWelcome welcome = welcomed(cluster, 2);
  CHECK(welcome.resume_round == Round(50));
  CHECK(welcome.rank_states.empty());
}

TEST_CASE("a view that begins where the servers were brings back what ranks gave for that round, and keeps it") {
  TrainingCluster cluster(2);
  cluster.stop_at(0, 40);
  welcomed(cluster, 2);
  keep(cluster, 1, 0, 49, "before");
  keep(cluster, 1, 0, 50, "of the round");
  keep(cluster, 0, 1, 50, "as well");
  keep(cluster, 1, 0, 51, "gone through again");
  for (std::uint16_t i = 0; i < 2; ++i) cluster.keep(i, 50, 51);
  cluster.leave(0, LeaveKind::kFailed, 50, "a trainer died");
  cluster.sent.clear();
  const JobWelcome welcome = welcomed(cluster, 2);
  CHECK(welcome.resume_round == Round(50));
  REQUIRE(welcome.rank_states.size() == 1);
  CHECK(welcome.rank_states[0] == bytes_of("of the round"));
  const auto other = required(cluster.only<JobWelcome>(worker_peer(0)));
  REQUIRE(other.rank_states.size() == 2);
  CHECK(other.rank_states[1] == bytes_of("as well"));
  // The view stops at once: nobody has come further, and nothing was said again.
  cluster.stop_at(0, 50);
  CHECK(cluster.job().record.committed == Round(50));
  CHECK(cluster.record().rank_states.size() == 2);
  // States of a round that is computed again are dropped.
  keep(cluster, 1, 0, 51, "once more");
  CHECK(cluster.record().rank_states.at({1, 0}) == bytes_of("of the round"));
}

TEST_CASE("a state of another view, or of somebody else's node, is not taken") {
  FullCluster cluster({.workers = 3});
  cluster.run(2);
  cluster.say(worker_peer(1),
              NodeRankState{cluster.open().job, ViewId(77), NodeRank(1), 0, {Round(40), bytes_of("x")}});
  cluster.say(worker_peer(2),
              NodeRankState{cluster.open().job, cluster.open().view, NodeRank(1), 0, {Round(40), bytes_of("y")}});
  const auto say_of = [&](std::uint32_t node, std::uint32_t local_rank) {
    cluster.say(
        worker_peer(1),
        NodeRankState{cluster.open().job, cluster.open().view, NodeRank(node), local_rank, {Round(40), bytes_of("z")}});
  };
  say_of(0, 0);  // the other worker's
  say_of(7, 0);  // nobody's
  say_of(1, 2);  // it has two
  cluster.stop_at(0, 40);
  CHECK(cluster.record().rank_states.empty());
}

TEST_CASE("members hear which round a snapshot is named for") {
  TrainingCluster cluster({.workers = 2}, with_snapshots(1, 0));
  for (std::uint64_t version = 10; version < 60; version += 10) cluster.pass(1000, 2, {}, version);
  const auto server = cluster.to<SnapshotAt>(server_peer(0));
  const auto worker = cluster.to<SnapshotAt>(worker_peer(1));
  REQUIRE_FALSE(worker.empty());
  CHECK(worker[0].round == server[0].round);
}

TEST_CASE("no more than the bound is recorded") {
  FullCluster cluster({.workers = 1});
  const std::string large(kMaxRankState, 'x');
  const auto most = static_cast<std::uint32_t>(kMaxRankStatesBytes / kMaxRankState);
  JoinOptions options;
  options.ranks = most + 1;
  cluster.run(1, options);
  for (std::uint32_t rank = 0; rank <= most; ++rank) keep(cluster, 0, rank, 40, large);
  cluster.stop_at(0, 40);
  CHECK(cluster.record().rank_states.size() == most);
  keep(cluster, 0, 0, 40, std::string(kMaxRankState, 'y'));  // takes the place of what it said before
  CHECK(cluster.record().rank_states.at({0, 0}).front() == std::byte{'y'});
}

}  // namespace tributary::coordinator_ranks_test

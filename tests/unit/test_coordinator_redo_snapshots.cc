// When snapshots are named for the sake of nodes that keep what they pushed since the last one.
#include <doctest/doctest.h>

#include "tests/unit/coordinator_fixture.h"

namespace tributary {

using namespace testing;

TEST_CASE("the first snapshot is named at once, because before it there is nothing to push rounds again upon") {
  Cluster cluster(1);
  cluster.everybody(1);
  JoinOptions options = keeping();
  SUBCASE("nodes wait for it") {}
  SUBCASE("nobody waits") {
    options.config.recovery.when_full = "go_on";
  }
  cluster.run(1, options);
  cluster.pass(1000, 1);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nothing is trained yet
  cluster.pass(2000, 1, {}, 1);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round.value < 8);
}

TEST_CASE("snapshots are named half a ring ahead, and never beyond what nodes can reach without them") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, keeping());
  cluster.pass(1000, 1);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nothing is trained yet
  cluster.pass(1000, 1, {}, 1);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == Round(3));
  cluster.sent.clear();
  std::uint64_t named = 0;
  SUBCASE("in time") {
    named = 11;
  }
  SUBCASE("late") {
    cluster.pass(1000, 1, {}, 13);
    named = 15;
  }
  SUBCASE("the nodes wait already") {
    cluster.pass(1000, 1, {}, 19);
    named = 19;
  }
  cluster.done(0, 3);
  const auto at = cluster.only<SnapshotAt>(server_peer(0));
  REQUIRE(at);
  CHECK(at->round == Round(named));
  cluster.sent.clear();
  cluster.done(0, named);
  // Nodes are told what they need not keep any more.
  REQUIRE(cluster.only<SnapshotCommit>(worker_peer(0)));
  CHECK(cluster.only<SnapshotCommit>(worker_peer(0))->round == Round(named));
  // The next one at once.
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round.value == named + 8);
}

TEST_CASE("a snapshot that shards had passed is named again where nobody can pass it, one that failed there later") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, keeping());
  cluster.pass(1000, 1, {}, 3);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  cluster.sent.clear();
  cluster.done(0, 5, false);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == Round(16));
  cluster.sent.clear();
  cluster.done(0, 16, false);
  CHECK(cluster.count<SnapshotAt>() == 0);
  cluster.pass(3000, 1, {}, 16);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == Round(16));
}

TEST_CASE("a job that is asked to stop still gets the snapshot that its open round may wait for") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, keeping());
  cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
  REQUIRE(cluster.only<StopRequest>(worker_peer(0)));
  cluster.pass(1000, 1, {}, 16);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == Round(16));
}

TEST_CASE("where nodes wait for a snapshot it is named at once, where they do not shards get memory for it in time") {
  Cluster cluster(1);
  cluster.everybody(1);
  JoinOptions options = keeping();
  options.tensors = {{"w", {16'000'000}}};  // 64 MB: half a second, as it is reckoned
  SUBCASE("nodes wait") {
    cluster.run(1, options);
    cluster.pass(2000, 1, {}, 1);
    CHECK(cluster.count<PrepareSnapshot>() == 0);
    CHECK(cluster.only<SnapshotAt>(server_peer(0)));
    return;
  }
  options.config.recovery.when_full = "go_on";
  options.redo_capacity = 200;
  cluster.run(1, options);
  cluster.pass(2000, 1, {}, 1);
  CHECK(cluster.count<PrepareSnapshot>() == 1);  // for the first one at once
  std::uint64_t version = 1;
  const auto second = [&](bool prepared) {
    cluster.now += 1000;
    version += 10;
    cluster.beat_server(0, version, version, prepared);
    cluster.beat_worker(0);
    cluster.core.tick(cluster.now);
  };
  second(true);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  const std::uint64_t first = cluster.only<SnapshotAt>(server_peer(0))->round.value;
  cluster.done(0, first);
  cluster.sent.clear();
  while (cluster.count<PrepareSnapshot>() == 0 && version < 200) second(false);
  CHECK(version < first + 100);  // half a ring after it the snapshot is wanted
  CHECK(version > first + 70);
  CHECK(cluster.count<SnapshotAt>() == 0);
  while (cluster.count<SnapshotAt>() == 0 && version < 200) second(true);
  const auto at = cluster.only<SnapshotAt>(server_peer(0));
  REQUIRE(at);
  CHECK(at->round.value >= first + 100);
  CHECK(at->round.value < first + 115);
}

TEST_CASE("where nobody waits for snapshots they are named by pace, and no more often than writing them is cheap") {
  Cluster cluster(1);
  cluster.everybody(1);
  JoinOptions options = keeping();
  options.config.recovery.when_full = "go_on";
  cluster.run(1, options);
  cluster.pass(2000, 1, {}, 1);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  const std::uint64_t first = cluster.only<SnapshotAt>(server_peer(0))->round.value;
  cluster.done(0, first);
  cluster.sent.clear();
  cluster.pass(2000, 1, {}, first + 1);
  CHECK(cluster.count<SnapshotAt>() == 0);  // what could be named now is less than half of what nodes keep
  cluster.pass(1000, 1, {}, first + 8);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  const std::uint64_t second = cluster.only<SnapshotAt>(server_peer(0))->round.value;
  CHECK(second > first + 8);
  cluster.sent.clear();
  // 100 MB: not again for 5 s.
  cluster.say(server_peer(0),
              SnapshotDone{cluster.open().job, cluster.open().view, Round(second), true, 100'000'000, {}});
  cluster.pass(4000, 1, {}, second + 12);
  CHECK(cluster.count<SnapshotAt>() == 0);
  cluster.pass(2000, 1, {}, second + 14);
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() == 1);
}

TEST_CASE(
    "where rounds are short the next snapshot is named as soon as one is committed, as it must be named far ahead") {
  Cluster cluster(1);
  cluster.everybody(1);
  JoinOptions options = keeping();
  options.redo_capacity = 256;
  options.config.recovery.when_full = "go_on";
  cluster.run(1, options);
  std::uint64_t version = 0;
  while (cluster.to<SnapshotAt>(server_peer(0)).empty() && version < 3000) cluster.pass(1000, 1, {}, version += 300);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  const std::uint64_t first = cluster.only<SnapshotAt>(server_peer(0))->round.value;
  cluster.done(0, first);
  cluster.sent.clear();
  REQUIRE(version < first);
  cluster.pass(1000, 1, {}, first + 110);  // less than half a ring after it
  CHECK(cluster.only<SnapshotAt>(server_peer(0)));
}

TEST_CASE("without a store nothing is kept, and no snapshot named") {
  Cluster cluster(1);
  cluster.everybody(1);
  ServerHello hello = cluster.hello_of(0);
  hello.store = false;
  cluster.say(server_peer(0), hello);
  JoinOptions options = keeping();
  cluster.join(0, options);
  cluster.all_ready();
  REQUIRE(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK_FALSE(cluster.only<JobWelcome>(worker_peer(0))->redo);
  cluster.pass(3000, 1, {}, 100);
  CHECK(cluster.count<SnapshotAt>() == 0);
}

}  // namespace tributary

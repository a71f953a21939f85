// Snapshots that are named for nodes that keep their pushes since the last one.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_redo_snapshots_test {

using namespace testing;

TEST_CASE("the first snapshot is named at once, because before it there is nothing to push rounds again upon") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, keeping());
  cluster.pass(1000, 1);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nothing is trained yet
  cluster.pass(2000, 1, {}, 1);
  CHECK(required(cluster.only<SnapshotAt>(server_peer(0))).round.value < 8);
}

TEST_CASE("shards get memory for a snapshot in time") {
  FullCluster cluster({.workers = 1, .servers = 1});
  JoinOptions options = keeping();
  options.tensors = {{"w", {16'000'000}}};  // 64 MB: half a second, as it is reckoned
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
    cluster.tick(cluster.now);
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
  const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(at.round.value >= first + 100);
  CHECK(at.round.value < first + 115);
}

TEST_CASE("snapshots are named by pace, and no more often than writing them is cheap") {
  FullCluster cluster({.workers = 1, .servers = 1});
  JoinOptions options = keeping();
  cluster.run(1, options);
  cluster.pass(2000, 1, {}, 1);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  const std::uint64_t first = cluster.only<SnapshotAt>(server_peer(0))->round.value;
  cluster.done(0, first);
  cluster.sent.clear();
  cluster.pass(2000, 1, {}, first + 1);
  CHECK(cluster.count<SnapshotAt>() == 0);  // what could be named now is less than half of what nodes keep
  cluster.pass(1000, 1, {}, first + 8);
  const std::uint64_t second = required(cluster.only<SnapshotAt>(server_peer(0))).round.value;
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
  FullCluster cluster({.workers = 1, .servers = 1});
  JoinOptions options = keeping();
  options.redo_capacity = 256;
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
  FullCluster cluster({.workers = 1, .servers = 1});
  ServerHello hello = cluster.hello_of(0);
  hello.store = false;
  cluster.say(server_peer(0), hello);
  JoinOptions options = keeping();
  cluster.join(0, options);
  cluster.all_ready();
  CHECK_FALSE(required(cluster.only<JobWelcome>(worker_peer(0))).redo);
  cluster.pass(3000, 1, {}, 100);
  CHECK(cluster.count<SnapshotAt>() == 0);
}

}  // namespace tributary::coordinator_redo_snapshots_test

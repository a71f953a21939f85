// One slot for snapshots, and its several users: the schedule, nodes that keep pushes, saves, and nodes that join.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_schedule_test {

using namespace testing;

namespace {

// Nodes with rings of 256 rounds, and snapshots every 1000 rounds.
JoinOptions rare_by_rounds() {
  JoinOptions options = keeping();
  options.redo_capacity = 256;
  options.config.snapshot.every_rounds = 1000;
  return options;
}

// Shards that do what is asked of them: a snapshot is done when its round is there.
struct Training {
  Cluster& cluster;
  std::uint64_t version = 0;
  std::uint64_t done = 0;  // the newest snapshot
  void second(std::uint64_t rounds) {
    cluster.pass(1000, 1, {}, version += rounds);
    const auto named = cluster.to<SnapshotAt>(server_peer(0));
    if (named.empty() || named.back().round.value > version || named.back().round.value <= done) return;
    done = named.back().round.value;
    cluster.all_done(done);
  }
};

}  // namespace

TEST_CASE("snapshots by rounds that are rarer than what nodes keep do not keep a lost server from being recovered") {
  TrainingCluster cluster({.workers = 1}, rare_by_rounds());
  Training training{cluster};
  std::vector<std::uint64_t> committed;
  while (training.version < 1100) {
    training.second(1);
    const std::uint64_t now = cluster.job().record.committed.value;
    if (committed.empty() || committed.back() != now) committed.push_back(now);
    if (training.version > 10) CHECK(training.version <= now + 256);
  }
  // The schedule's own is there, too.
  CHECK(std::ranges::find(committed, 1000u) != committed.end());
}

TEST_CASE("a snapshot that is committed before heartbeats say so is not made again") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(0, 10));
  std::uint64_t version = 0;
  while (cluster.count<SnapshotAt>() == 0) cluster.pass(1000, 1, {}, version += 1);
  const Round round = cluster.only<SnapshotAt>(server_peer(0))->round;
  cluster.all_done(round.value);
  cluster.sent.clear();
  for (int i = 0; i < 20; ++i) cluster.pass(1000, 1, {}, round.value - 2);
  CHECK(cluster.count<SnapshotAt>() == 0);
  for (int i = 0; i < 12; ++i) cluster.pass(1000, 1, {}, round.value + static_cast<std::uint64_t>(i));
  CHECK(cluster.only<SnapshotAt>(server_peer(1))->round == Round(round.value + 10));
}

TEST_CASE("a save does not wait for a snapshot by rounds that is far") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(0, 1000));
  Training training{cluster};
  for (int i = 0; i < 5; ++i) training.second(1);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nobody needs to know of round 1000 yet
  REQUIRE(cluster.core.save_checkpoint({"mnist", "/shared", "now", false}, cluster.now));
  for (int i = 0; i < 10; ++i) training.second(1);
  CHECK(cluster.to<WriteCheckpoint>(server_peer(0)).size() == 1);
}

TEST_CASE("a snapshot by rounds is named in time, also by shards that are fast") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, with_snapshots(0, 500));
  std::uint64_t version = 0;
  for (int i = 0; i < 4; ++i) cluster.pass(1000, 1, {}, version += 90);
  CHECK(cluster.count<SnapshotAt>() == 0);
  while (cluster.count<SnapshotAt>() == 0 && version < 500) {  // as a coordinator's ticks come
    cluster.now += 100;
    version += 9;
    cluster.beat_server(0, version, version);
    cluster.beat_worker(0);
    cluster.tick(cluster.now);
  }
  CHECK(required(cluster.only<SnapshotAt>(server_peer(0))).round == Round(500));
}

TEST_CASE("a snapshot that the job has become too slow for gives way to one that is near") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(5, 0));
  std::uint64_t version = 0;
  for (int i = 0; i < 5; ++i) cluster.pass(1000, 1, {}, version += 1000);
  const auto far = required(cluster.only<SnapshotAt>(server_peer(0)));
  REQUIRE(far.round.value > version + 200);
  SUBCASE("it is named again, near") {
    for (int i = 0; i < 7; ++i) cluster.pass(1000, 1, {}, version += 1);
    const auto named = cluster.to<SnapshotAt>(server_peer(0));
    REQUIRE(named.size() == 2);
    CHECK(named[1].round.value > version - 3);
    CHECK(named[1].round.value < version + 10);
    // Reports about the first snapshot count no more.
    cluster.done(0, far.round.value, false);
    cluster.all_done(named[1].round.value);
    CHECK(cluster.job().record.committed == named[1].round);
  }
  SUBCASE("not if a shard is through with it") {
    cluster.done(0, far.round.value);
    for (int i = 0; i < 7; ++i) cluster.pass(1000, 1, {}, version += 1);
    CHECK(cluster.only<SnapshotAt>(server_peer(0)));
  }
}

TEST_CASE(
    "a node that joins a job that goes back to a snapshot for it does not wait for a snapshot by rounds that is far") {
  FullCluster cluster({.workers = 2, .servers = 1});
  JoinOptions options = with_snapshots(0, 1000);
  options.config.push = EncodingId::kInt8;  // what nodes have not said yet is theirs
  options.config.membership.on_worker_loss = OnLoss::kContinue;
  cluster.run(1, options);
  Training training{cluster};
  for (int i = 0; i < 5; ++i) training.second(1);
  options.node = 1;
  options.nodes = 2;
  cluster.join(1, options);
  for (int i = 0; i < 10; ++i) training.second(1);
  CHECK(cluster.job().record.committed.value > 5);
  CHECK(cluster.job().record.committed.value < 16);
}

}  // namespace tributary::coordinator_schedule_test

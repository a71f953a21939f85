// CoordinatorCore: consistent snapshots, and a restart of the cluster from them.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_snapshots_test {

using namespace testing;

// ---- Snapshots ----

TEST_CASE("a snapshot's round is named ahead of the fastest shard by its pace") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(10, 0));
  std::uint64_t version = 0;
  const auto second = [&] {
    cluster.now += 1000;
    version += 50;
    cluster.beat_server(0, version - 1, version);
    cluster.beat_server(1, version - 9, version - 9);
    cluster.beat_worker(0);
    cluster.tick(cluster.now);
  };
  for (int i = 0; i < 9; ++i) second();
  CHECK(cluster.count<SnapshotAt>() == 0);
  second();
  const auto at = required(cluster.only<SnapshotAt>(server_peer(1)));
  CHECK(at.round.value > version + 10);  // 300 ms ahead at 50 rounds a second
  CHECK(at.round.value < version + 30);
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == at.round);
  second();
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() == 1);  // one at a time
  cluster.done(0, at.round.value);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  cluster.done(1, at.round.value);
  CHECK(cluster.count<SnapshotCommit>() == 3);  // the node, too
  CHECK(cluster.registry.begin()->second.committed == at.round);
  CHECK(cluster.phase() == "running");
}

TEST_CASE("the round of a large snapshot is named when all shards have memory for it, or after a while without") {
  FullCluster cluster({.workers = 1});
  JoinOptions options = with_snapshots(10, 0);
  options.tensors = {{"w", {16'000'000}}};  // 64 MB of parameters
  cluster.run(1, options);
  std::uint64_t version = 0;
  const auto second = [&](bool first, bool other) {
    cluster.now += 1000;
    version += 50;
    cluster.beat_server(0, version, version, first);
    cluster.beat_server(1, version, version, other);
    cluster.beat_worker(0);
    cluster.tick(cluster.now);
  };
  for (int i = 0; i < 9; ++i) second(true, true);  // of an earlier one: nobody has asked yet
  CHECK(cluster.count<PrepareSnapshot>() == 0);
  second(true, true);
  REQUIRE(cluster.only<PrepareSnapshot>(server_peer(0)));
  REQUIRE(cluster.only<PrepareSnapshot>(server_peer(1)));
  CHECK(cluster.only<PrepareSnapshot>(server_peer(0))->view == ViewId(1));
  CHECK(cluster.count<SnapshotAt>() == 0);
  second(true, false);
  second(false, false);  // what it has it keeps
  CHECK(cluster.count<SnapshotAt>() == 0);
  SUBCASE("the last shard says so") {
    second(false, true);
  }
  SUBCASE("it never does") {
    for (int i = 0; i < 27; ++i) second(false, false);
    CHECK(cluster.count<SnapshotAt>() == 0);
    second(false, false);
  }
  const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(at.round.value > version + 10);  // 300 ms ahead at 50 rounds a second
  CHECK(at.round.value < version + 30);
  CHECK(cluster.count<PrepareSnapshot>() == 2);  // asked once
  // The next one is asked for again.
  cluster.sent.clear();
  cluster.all_done(at.round.value);
  for (int i = 0; i < 10; ++i) second(false, false);
  CHECK(cluster.count<PrepareSnapshot>() == 2);
  CHECK(cluster.count<SnapshotAt>() == 0);
}

TEST_CASE("a server that comes back over another connection is asked for its memory again") {
  FullCluster cluster({.workers = 1});
  JoinOptions options = with_snapshots(1, 0);
  options.tensors = {{"w", {16'000'000}}};
  cluster.run(1, options);
  cluster.pass(3000, 1, {}, 10);
  REQUIRE(cluster.count<PrepareSnapshot>() == 2);
  cluster.beat_server(1, 20, 20, true);
  cluster.sent.clear();
  cluster.say(PeerId(8888), Heartbeat{server_incarnation(0), {}});
  CHECK(cluster.only<PrepareSnapshot>(PeerId(8888)));
  cluster.say(PeerId(8889), Heartbeat{server_incarnation(1), {}});
  CHECK_FALSE(cluster.only<PrepareSnapshot>(PeerId(8889)));  // it has said that it has it
}

TEST_CASE("shards are not asked for memory once their view is over") {
  FullCluster cluster({.workers = 1, .servers = 1});
  JoinOptions options = with_snapshots(1, 0);
  options.tensors = {{"w", {16'000'000}}};
  cluster.run(1, options);
  cluster.pass(3000, 1, {}, 10);
  REQUIRE(cluster.count<PrepareSnapshot>() == 1);
  cluster.sent.clear();
  cluster.leave(0, LeaveKind::kFailed, 10, "rank 0 died");
  cluster.say(PeerId(8888), Heartbeat{server_incarnation(0), {}});
  CHECK(cluster.count<PrepareSnapshot>() == 0);
}

TEST_CASE("snapshots by rounds are named at multiples") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, with_snapshots(0, 25));
  cluster.tick(cluster.now);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nothing has been trained
  cluster.now += 1000;
  cluster.beat_server(0, 28, 28);
  cluster.tick(cluster.now);
  CHECK(cluster.count<SnapshotAt>() == 0);  // one heartbeat does not tell how fast the job is
  cluster.now += 10;
  cluster.beat_server(0, 29, 29);  // nor do two that come at once
  cluster.tick(cluster.now);
  CHECK(cluster.count<SnapshotAt>() == 0);
  cluster.now += 990;
  cluster.beat_worker(0);
  cluster.beat_server(0, 30, 30);
  cluster.tick(cluster.now);
  CHECK(cluster.count<SnapshotAt>() == 0);  // round 50 is not near
  cluster.now += 9000;
  cluster.beat_worker(0);
  cluster.now += 1000;
  cluster.beat_server(0, 40, 40);
  cluster.tick(cluster.now);
  CHECK(cluster.count<SnapshotAt>() == 0);
  cluster.now += 1000;
  cluster.beat_worker(0);
  cluster.beat_server(0, 46, 46);
  cluster.tick(cluster.now);
  CHECK(required(cluster.only<SnapshotAt>(server_peer(0))).round == Round(50));
  cluster.now += 1000;
  cluster.beat_worker(0);
  cluster.beat_server(0, 51, 51);
  cluster.done(0, 50);
  cluster.tick(cluster.now);
  CHECK(cluster.count<SnapshotAt>() == 2);
  cluster.now += 9000;
  cluster.beat_worker(0);
  cluster.now += 1000;
  cluster.beat_server(0, 71, 71);
  cluster.tick(cluster.now);
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).back().round == Round(75));
}

TEST_CASE("a missed snapshot is tried again later and further ahead") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(1, 0));
  cluster.pass(2000, 1, {}, 10);
  const auto first = required(cluster.only<SnapshotAt>(server_peer(0)));
  cluster.done(0, first.round.value, false);
  cluster.done(1, first.round.value);  // the others' success is no use
  CHECK(cluster.count<SnapshotCommit>() == 0);
  cluster.pass(2000, 1, {}, 20);
  const auto named = cluster.to<SnapshotAt>(server_peer(0));
  REQUIRE(named.size() == 2);
  CHECK(named[1].round > first.round);
  cluster.all_done(named[1].round.value);
  CHECK(cluster.job().record.committed == named[1].round);
}

TEST_CASE("a disk that stays full is not asked every second") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, with_snapshots(1, 0));
  for (int i = 0; i < 300; ++i) {
    cluster.pass(1000, 1, {}, static_cast<std::uint64_t>(i));
    const auto named = cluster.to<SnapshotAt>(server_peer(0));
    if (!named.empty()) cluster.done(0, named.back().round.value, false);
  }
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() > 5);
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() < 40);
}

TEST_CASE("a snapshot whose message was lost does not end all snapshots") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, with_snapshots(1, 0));
  cluster.pass(2000, 1, {}, 10);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  SUBCASE("the connection was renewed") {
    cluster.say(PeerId(8888), Heartbeat{server_incarnation(0), {}});
    CHECK(cluster.only<SnapshotAt>(PeerId(8888))->round == cluster.only<SnapshotAt>(server_peer(0))->round);
  }
  SUBCASE("nothing tells of it") {
    cluster.pass(11 * kMinute, 1, {}, 12);
    CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() >= 2);
  }
}

TEST_CASE("a snapshot takes as long as servers say that they write, and is tried again when they no longer do") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(10, 0));
  cluster.warnings.clear();  // that its node keeps no pushes
  std::uint64_t version = 0;
  const auto minute = [&](bool writes) {
    for (int s = 0; s < 60; ++s) {
      cluster.now += 1000;
      version += 50;
      cluster.beat_server(0, version, version);  // it is done, or never was told
      cluster.beat_server(1, version, version, false, writes);
      cluster.beat_worker(0);
      cluster.tick(cluster.now);
    }
  };
  minute(true);
  const auto at = required(cluster.only<SnapshotAt>(server_peer(1)));
  SUBCASE("an hour") {
    cluster.done(0, at.round.value);
    for (int i = 0; i < 60; ++i) minute(true);
    CHECK(cluster.warnings.empty());
    CHECK(cluster.count<SnapshotAt>() == 3);  // all members; no other one
    cluster.done(1, at.round.value);
    CHECK(cluster.registry.begin()->second.committed == at.round);
  }
  SUBCASE("one of them lost the order") {
    for (int i = 0; i < 2; ++i) minute(true);
    REQUIRE_FALSE(cluster.warnings.empty());
    CHECK(contains(cluster.warnings[0], "did not come in time; another one is tried"));
    CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() > 1);
  }
}

TEST_CASE("a node that lags after others have finished has as long as it lives") {
  TrainingCluster cluster(2, 1);
  cluster.leave(0, LeaveKind::kFinished, 5);
  const auto minute = [&](std::uint64_t answers) {
    cluster.now += kMinute;
    cluster.beat_server(0, 5, 5);
    cluster.beat_worker(0);
    NodePace pace{.job = cluster.open().job, .view = cluster.open().view, .node = NodeRank(1), .answers = answers};
    cluster.say(worker_peer(1), Heartbeat{worker_incarnation(1), {}, {pace}});
    cluster.tick(cluster.now);
  };
  std::uint64_t answers = 0;
  while (answers < 100) minute(++answers);
  REQUIRE(cluster.count<StopJob>() == 0);
  SUBCASE("it finishes") {
    cluster.leave(1, LeaveKind::kFinished, 5);
    CHECK(required(cluster.only<StopJob>(server_peer(0))).kind == StopKind::kFinished);
  }
  SUBCASE("it takes no more of them") {
    for (int i = 0; i < 100; ++i) minute(answers);
    CHECK(cluster.count<StopJob>() == 0);
    cluster.have_answers = false;
    cluster.leave(1, LeaveKind::kFailed, 5);
    CHECK(required(cluster.only<StopJob>(server_peer(0))).kind == StopKind::kStopped);
  }
}

TEST_CASE("a heartbeat that was overtaken does not make the pace absurd") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, with_snapshots(5, 0));
  cluster.now += 1000;
  cluster.beat_server(0, 100, 100);
  cluster.now += 10;
  cluster.beat_server(0, 90, 90);
  cluster.pass(6000, 1, {}, 110);
  CHECK(required(cluster.only<SnapshotAt>(server_peer(0))).round.value < 200);
}

TEST_CASE("no snapshot is begun once the job is asked to stop") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, with_snapshots(5, 0));
  cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
  cluster.pass(20'000, 1, {}, 50);
  CHECK(cluster.count<SnapshotAt>() == 0);
}

TEST_CASE("a commit that cannot be recorded drops no older snapshot") {
  TrainingCluster cluster(1, 1);
  cluster.leave(0, LeaveKind::kStopped, 5);
  cluster.save_fails = true;
  cluster.done(0, 5);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  CHECK(cluster.phase() == "idle");
  cluster.tick(cluster.now + 1500);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  cluster.save_fails = false;
  cluster.tick(cluster.now + 3000);
  CHECK(required(cluster.only<SnapshotCommit>(server_peer(0))).round == Round(5));
  CHECK(cluster.registry.begin()->second.committed == Round(5));
}

TEST_CASE("a snapshot of a running job that is recorded late is told to nodes as soon as it is") {
  TrainingCluster cluster({.workers = 1, .servers = 1}, with_snapshots(5, 0));
  for (std::uint64_t version = 10; version < 70; version += 10) cluster.pass(1000, 1, {}, version);
  const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
  cluster.save_fails = true;
  cluster.done(0, at.round.value);
  CHECK(cluster.to<SnapshotCommit>(worker_peer(0)).empty());
  cluster.save_fails = false;
  cluster.pass(2000, 1, {}, 80);
  REQUIRE(cluster.to<SnapshotCommit>(worker_peer(0)).size() == 1);
  CHECK(cluster.to<SnapshotCommit>(worker_peer(0))[0].round == at.round);
}

// ---- Restarts of the cluster ----

TEST_CASE("a restarted coordinator resumes a job from its registry") {
  const Stopped before = stopped_at(20);
  Cluster cluster(2, before.records, 8);
  restarted(cluster, before.stored);
  CHECK(cluster.job().record.committed == Round(20));
  JoinOptions other;
  other.config.optimizer.lr = 0.5;
  cluster.join(0, other);
  CHECK(cluster.only<ControlError>(worker_peer(0))->code == ErrorCode::kConfigMismatch);
  cluster.join(0, {.tensors = {{"w", {99}}}});
  CHECK(cluster.to<ControlError>(worker_peer(0)).back().code == ErrorCode::kLayoutMismatch);
  cluster.join(0, {});
  REQUIRE(cluster.last_open);
  CHECK(cluster.open().job == before.records[0].job);
  CHECK(cluster.open().view == ViewId(2));
  CHECK(cluster.open().resume_round == Round(20));
  CHECK(cluster.open().owners == before.records[0].owners);
  cluster.all_ready();
  CHECK(cluster.only<JobWelcome>(worker_peer(0))->resume);
}

TEST_CASE("a newer snapshot that all shards have complete is taken though it was never committed") {
  Stopped before = stopped_at(20);
  std::vector<StoredJob> first = before.stored, second = before.stored;
  first[0].snapshots = {Round(20), Round(30), Round(40)};
  second[0].snapshots = {Round(20), Round(30)};
  Cluster cluster(2, before.records, 8);
  cluster.everybody(1);
  cluster.server(0, first);
  cluster.server(1, second);
  cluster.join(0, {});
  CHECK(cluster.open().resume_round == Round(30));
  CHECK(cluster.registry.begin()->second.committed == Round(30));
  // Round 40 will be gone through again; what one shard has of it from before is not to be mixed with what comes.
  cluster.all_ready();
  cluster.leave(0, LeaveKind::kFailed, 30);
  cluster.join(0, {});
  CHECK(cluster.open().resume_round == Round(30));
}

TEST_CASE("a first snapshot that was never committed is taken too, and no changed training begins anew over it") {
  TrainingCluster cluster(1);
  const JobId id = cluster.open().job;
  const std::vector<StoredJob> stored{StoredJob{id, "mnist", 0, {Round(9)}}};
  Cluster again(2, cluster.records(), 8);
  restarted(again, stored);
  SUBCASE("the same training") {
    again.join(0, {});
    CHECK(again.open().resume);
    CHECK(again.open().resume_round == Round(9));
    CHECK(again.open().job == id);
  }
  SUBCASE("changed") {
    JoinOptions changed;
    changed.config.optimizer.lr = 0.5;
    again.join(0, changed);
    CHECK(again.count<OpenJob>() == 0);
    CHECK(again.only<ControlError>(worker_peer(0))->code == ErrorCode::kConfigMismatch);
  }
}

TEST_CASE("a training that was changed before it had a snapshot is another one") {
  TrainingCluster cluster(1);
  const JobId id = cluster.open().job;
  Cluster again(2, cluster.records(), 8);
  again.registry = cluster.registry;
  restarted(again, {});
  JoinOptions changed;
  changed.config.optimizer.lr = 0.5;
  again.join(0, changed);
  REQUIRE(again.last_open);
  CHECK_FALSE(again.open().resume);
  CHECK(again.open().job != id);
  CHECK(again.open().view == ViewId(2));
  CHECK_FALSE(again.registry.contains(id.value));
}

TEST_CASE("of two records of one name the newer counts") {
  TrainingCluster cluster(1);
  std::vector<JobRecord> two = cluster.records();
  two.push_back(two[0]);
  two[1].job = JobId(4711);
  two[1].view = two[0].view.next();
  SUBCASE("in this order") {}
  SUBCASE("in the other") {
    std::swap(two[0], two[1]);
  }
  Cluster again(2, two, 9);
  CHECK(again.job().record.job == JobId(4711));
}

TEST_CASE("a server that comes back without its store is named, with the cure") {
  const Stopped before = stopped_at(20);
  Cluster cluster(2, before.records, 8);
  cluster.everybody(1);
  cluster.server(0, before.stored);
  cluster.sent.clear();
  cluster.join(0, {});
  const auto error = required(cluster.only<ControlError>(worker_peer(0)));
  CHECK(error.code == ErrorCode::kStore);
  for (const char* word : {"server 1", "round 20", "'mnist'", "another job name"}) {
    CHECK(contains(error.message, word));
  }
  CHECK(cluster.phase() == "idle");
}

TEST_CASE("a cluster with fewer servers than the job has state on is refused with both numbers") {
  const Stopped before = stopped_at(20, 3);
  Cluster cluster(2, before.records, 8);
  restarted(cluster, before.stored);
  cluster.join(0, {});
  check_error(cluster, worker_peer(0), ErrorCode::kTopology, {"server 2", "2 servers"});
}

TEST_CASE("a resumed job keeps its shards and spreads over the lanes that there are now") {
  const Stopped before = stopped_at(20);
  Cluster cluster(2, before.records, 8);
  cluster.everybody(1);
  for (std::uint16_t i = 0; i < 2; ++i) {
    ServerHello hello = cluster.hello_of(i);
    hello.stored = before.stored;
    hello.lane_endpoints = i == 0 ? std::vector<std::string>{"a"} : std::vector<std::string>{"b", "c", "d"};
    cluster.say(server_peer(i), hello);
  }
  cluster.join(0, {});
  REQUIRE(cluster.last_open);
  std::uint32_t next = 0;
  for (std::size_t c = 0; c < cluster.open().owners.size(); ++c) {
    const ChunkOwner owner = cluster.open().owners[c];
    CHECK(owner.shard == before.records[0].owners[c].shard);
    CHECK(owner.lane.value == (owner.shard.value == 0 ? 0 : next++ % 3));
  }
  CHECK(next >= 3);
}

TEST_CASE("a record that cannot be read is left aside with a word in the log") {
  JobRecord broken;
  broken.job = JobId(5);
  broken.job_json = "{";
  Cluster cluster(1, {broken});
  CHECK(cluster.core.jobs().empty());
}

}  // namespace tributary::coordinator_snapshots_test

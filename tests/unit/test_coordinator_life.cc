// CoordinatorCore: what happens while a view runs (snapshots, losses, stops), and what is left when it is over.
#include <doctest/doctest.h>

#include "tests/unit/coordinator_fixture.h"

namespace tributary {

using namespace testing;

namespace {

constexpr std::uint64_t kMinute = 60'000;

JoinOptions with_snapshots(std::uint32_t every_s, std::uint64_t every_rounds) {
  JoinOptions options;
  options.config.snapshot.every_s = every_s;
  options.config.snapshot.every_rounds = every_rounds;
  return options;
}

// A job that was stopped at `round`, as its record and the servers' stores have it.
struct Stopped {
  std::vector<JobRecord> records;
  std::vector<StoredJob> stored;
};
Stopped stopped_at(std::uint64_t round, std::uint16_t servers = 2) {
  Cluster cluster(servers);
  cluster.everybody(1);
  cluster.run(1);
  cluster.leave(0, LeaveKind::kStopped, round);
  cluster.all_done(round);
  REQUIRE(cluster.job().record.committed == Round(round));
  return {cluster.records(), {StoredJob{cluster.open().job, "mnist", 0, {Round(round)}}}};
}

void restarted(Cluster& cluster, const std::vector<StoredJob>& stored, std::uint32_t workers = 1) {
  cluster.everybody(workers);
  for (std::uint16_t i = 0; i < 2; ++i) cluster.server(i, stored);
  cluster.sent.clear();
}

}  // namespace

// ---- Stopping and finishing ----

TEST_CASE("a job is finished when every node is, its state kept by every shard, and resumes when it is joined again") {
  Cluster cluster(2);
  cluster.everybody(2);
  cluster.run(2);
  cluster.leave(0, LeaveKind::kFinished, 30);
  CHECK(cluster.phase() == "running");
  cluster.leave(1, LeaveKind::kFinished, 30);
  CHECK(cluster.phase() == "stopping");
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(0), worker_peer(1)}) {
    const auto stop = cluster.only<StopJob>(peer);
    REQUIRE(stop);
    CHECK(stop->kind == StopKind::kFinished);
    CHECK(stop->round == Round(30));
  }
  cluster.done(0, 30);
  CHECK(cluster.phase() == "stopping");
  CHECK_FALSE(cluster.core.idle());
  cluster.done(1, 30);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.core.idle());
  CHECK(cluster.only<SnapshotCommit>(server_peer(1))->round == Round(30));
  const JobRecord& record = cluster.registry.begin()->second;
  CHECK(record.finished);
  CHECK(record.initialised);
  CHECK(record.committed == Round(30));
  cluster.sent.clear();
  JoinOptions longer{.nodes = 1};  // more epochs, and on one node instead of two
  longer.config.train.epochs = 50;
  cluster.join(0, longer);
  REQUIRE(cluster.only<OpenJob>(server_peer(0)));
  CHECK(cluster.open().resume);
  CHECK(cluster.open().resume_round == Round(30));
  CHECK(cluster.open().view == ViewId(2));
  CHECK(cluster.open().job == record.job);
  CHECK_FALSE(cluster.registry.begin()->second.finished);
}

TEST_CASE("one node that stops at a round stops the job there") {
  Cluster cluster(2);
  cluster.everybody(2);
  cluster.run(2);
  cluster.leave(1, LeaveKind::kStopped, 12, "Ctrl-C");
  const auto stop = cluster.only<StopJob>(worker_peer(0));
  REQUIRE(stop);
  CHECK(stop->kind == StopKind::kStopped);
  CHECK(stop->round == Round(12));
  CHECK(stop->reason == "Ctrl-C");
  cluster.leave(1, LeaveKind::kStopped, 12);  // said again
  cluster.leave(0, LeaveKind::kStopped, 12);
  CHECK(cluster.count<StopJob>() == 4);
  cluster.all_done(12);
  CHECK(cluster.job().record.committed == Round(12));
  CHECK_FALSE(cluster.job().record.finished);
}

TEST_CASE("a daemon that is stopped gets its word when the job's state is safe") {
  Cluster cluster(2);
  cluster.everybody(2);
  cluster.run(2);
  PeerId daemon = worker_peer(1);
  std::uint64_t incarnation = worker_incarnation(1);
  SUBCASE("a worker") {}
  SUBCASE("a server") {
    daemon = server_peer(1);
    incarnation = server_incarnation(1);
  }
  cluster.say(daemon, DrainRequest{incarnation});
  cluster.say(daemon, DrainRequest{incarnation});
  for (std::uint32_t w = 0; w < 2; ++w) CHECK(cluster.only<StopRequest>(worker_peer(w)));
  CHECK(cluster.count<DrainDone>() == 0);
  cluster.leave(0, LeaveKind::kStopped, 5);
  cluster.done(0, 5);
  CHECK(cluster.count<DrainDone>() == 0);
  cluster.done(1, 5);
  CHECK(cluster.only<DrainDone>(daemon));
  CHECK(cluster.count<DrainDone>() == 1);
}

TEST_CASE("a daemon that reconnected while it waited is told on its new connection") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1);
  cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
  cluster.say(PeerId(8888), Heartbeat{worker_incarnation(0), {}});
  cluster.say(PeerId(8888), LeaveJob{cluster.open().job, cluster.open().view, NodeRank(0), LeaveKind::kStopped, Round(5), {}, {}});
  cluster.done(0, 5);
  CHECK(cluster.only<DrainDone>(PeerId(8888)));
}

TEST_CASE("a worker without jobs may go at once, whatever runs elsewhere") {
  Cluster cluster(1);
  cluster.everybody(2);
  cluster.run(1);
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  CHECK(cluster.only<DrainDone>(worker_peer(1)));
  cluster.say(PeerId(6666), DrainRequest{4242});  // nobody that is known
  CHECK(cluster.only<DrainDone>(PeerId(6666)));
  CHECK(cluster.count<StopRequest>() == 0);
  CHECK(cluster.phase() == "running");
}

TEST_CASE("draining the coordinator stops what runs and sends away what waits") {
  Cluster cluster(1);
  cluster.everybody(3);
  cluster.join(2, {.job = "waiting", .nodes = 2});
  cluster.join(1, {.job = "opening"});
  const JobId opening = cluster.open().job;
  cluster.run(1);
  cluster.core.drain(cluster.now);
  cluster.core.drain(cluster.now);
  CHECK(cluster.only<StopRequest>(worker_peer(0)));
  for (const std::uint32_t w : {1u, 2u}) {
    const auto error = cluster.only<ControlError>(worker_peer(w));
    REQUIRE(error);
    CHECK(error->code == ErrorCode::kStopped);
    CHECK(error->job == (w == 1 ? "opening" : "waiting"));
  }
  CHECK(cluster.only<StopJob>(server_peer(0))->job == opening);
  CHECK_FALSE(cluster.core.idle());
  cluster.join(1, {.job = "late"});
  CHECK(cluster.to<ControlError>(worker_peer(1)).size() == 2);
  cluster.leave(0, LeaveKind::kStopped, 3);
  cluster.done(0, 3);
  CHECK(cluster.core.idle());
}

TEST_CASE("nodes that finished wait for the others a minute, with and without snapshots") {
  for (const std::uint32_t every_s : {0u, 10u}) {
    for (const bool they_finish : {true, false}) {
      Cluster cluster(1);
      cluster.everybody(2);
      cluster.run(2, with_snapshots(every_s, 0));
      cluster.pass(5 * kMinute, 2);
      cluster.sent.clear();
      cluster.leave(0, LeaveKind::kFinished, 30);
      cluster.pass(kMinute - 5000, 2, {}, 29);
      CHECK(cluster.phase() == "running");
      CHECK(cluster.count<SnapshotAt>() == 0);
      if (they_finish) {
        cluster.leave(1, LeaveKind::kFinished, 30);
      } else {
        cluster.pass(10'000, 2, {}, 30);
      }
      const auto stop = cluster.only<StopJob>(worker_peer(1));
      REQUIRE(stop);
      CHECK(stop->kind == (they_finish ? StopKind::kFinished : StopKind::kStopped));
      CHECK(stop->round == Round(30));
    }
  }
}

TEST_CASE("a node that is lost after another has finished does not cost the others' last round") {
  Cluster cluster(1);
  cluster.everybody(2);
  cluster.run(2);
  cluster.leave(0, LeaveKind::kFinished, 30);
  SUBCASE("it fails") { cluster.leave(1, LeaveKind::kFailed, 29, "evaluation crashed"); }
  SUBCASE("its worker is not heard any more") { cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(1)}); }
  const auto stop = cluster.only<StopJob>(server_peer(0));
  REQUIRE(stop);
  CHECK(stop->kind == StopKind::kStopped);
  CHECK(stop->round == Round(30));
}

TEST_CASE("a worker that goes after it has finished is not missed") {
  Cluster cluster(1);
  cluster.everybody(2);
  cluster.run(2);
  cluster.leave(0, LeaveKind::kFinished, 30);
  cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(0)});
  CHECK(cluster.phase() == "running");
  cluster.leave(1, LeaveKind::kFinished, 30);
  CHECK(cluster.only<StopJob>(server_peer(0))->kind == StopKind::kFinished);
}

TEST_CASE("a node that joins again while the others finish is asked to wait") {
  Cluster cluster(1);
  cluster.everybody(2);
  cluster.run(2);
  cluster.leave(0, LeaveKind::kFinished, 30);
  cluster.join(0, {.node = 0, .nodes = 2});
  REQUIRE(cluster.only<ControlError>(worker_peer(0)));
  CHECK(cluster.only<ControlError>(worker_peer(0))->code == ErrorCode::kUnavailable);
  cluster.leave(1, LeaveKind::kFinished, 30);
  cluster.sent.clear();
  cluster.join(0, {.node = 0, .nodes = 2});
  CHECK(cluster.only<ControlError>(worker_peer(0))->code == ErrorCode::kUnavailable);
  CHECK(cluster.phase() == "stopping");
}

TEST_CASE("a final state that a shard cannot keep leaves the last snapshot standing") {
  Cluster cluster(2);
  cluster.everybody(1);
  cluster.run(1);
  cluster.leave(0, LeaveKind::kStopped, 5);
  SUBCASE("it says so") {
    cluster.done(0, 5);
    cluster.done(1, 5, false);
  }
  SUBCASE("it never answers") {
    cluster.done(0, 5);
    cluster.pass(kMinute + 2000, 1);
  }
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.count<SnapshotCommit>() == 0);
  CHECK_FALSE(cluster.job().record.initialised);
}

TEST_CASE("a job stopped before its first round resumes at round 0") {
  const Stopped before = stopped_at(0);
  Cluster cluster(2, before.records);
  restarted(cluster, before.stored);
  cluster.join(0, {});
  REQUIRE(cluster.last_open);
  CHECK(cluster.open().resume);
  CHECK(cluster.open().resume_round == Round(0));
}

// ---- Losses ----

TEST_CASE("losing a member ends the view everywhere with the reason, and the next one starts from the last snapshot") {
  Cluster cluster(2);
  cluster.everybody(2);
  cluster.run(2);
  std::string reason;
  SUBCASE("a trainer") {
    cluster.leave(1, LeaveKind::kFailed, 3, "rank 2 was killed");
    reason = "rank 2 was killed";
  }
  SUBCASE("a worker") {
    cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(1)});
    reason = "host1";
    CHECK(cluster.core.peers().size() == 3);
  }
  SUBCASE("a server") {
    cluster.pass(kTimeoutMs + 2000, 2, {server_peer(1)});
    reason = "server 1";
  }
  const auto stop = cluster.only<StopJob>(worker_peer(0));
  REQUIRE(stop);
  CHECK(stop->kind == StopKind::kRestart);
  CHECK(stop->reason.find(reason) != std::string::npos);
  CHECK(cluster.only<StopJob>(server_peer(0)));
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().last_stop.find(reason) != std::string::npos);
  cluster.everybody(2);
  cluster.run(2);
  CHECK(cluster.phase() == "running");
  CHECK(cluster.open().view == ViewId(2));
  CHECK_FALSE(cluster.open().resume);
  // What the ended view still says changes nothing.
  cluster.say(worker_peer(0), LeaveJob{cluster.open().job, ViewId(1), NodeRank(0), LeaveKind::kFailed, Round(3), "late", {}});
  cluster.say(server_peer(0), SnapshotDone{cluster.open().job, ViewId(1), Round(3), true, 1, {}});
  CHECK(cluster.phase() == "running");
}

TEST_CASE("a member that attaches again while the job runs restarts it, unless what it brings does not fit") {
  Cluster cluster(1);
  cluster.everybody(2);
  cluster.run(2);
  cluster.join(1, {.node = 1, .nodes = 2, .tensors = {{"other", {5}}}});
  CHECK(cluster.only<ControlError>(worker_peer(1))->code == ErrorCode::kLayoutMismatch);
  CHECK(cluster.phase() == "running");
  cluster.join(1, {.node = 1, .nodes = 2});
  CHECK(cluster.only<StopJob>(worker_peer(0))->kind == StopKind::kRestart);
  CHECK(cluster.phase() == "gathering");
}

TEST_CASE("a welcome that never arrived: the worker leaves by name and the view is given up") {
  Cluster cluster(1);
  cluster.everybody(2);
  cluster.run(2);
  cluster.say(worker_peer(1), LeaveJob{{}, {}, NodeRank(1), LeaveKind::kFailed, {}, "attach timed out", "mnist"});
  CHECK(cluster.only<StopJob>(worker_peer(0))->kind == StopKind::kRestart);
}

TEST_CASE("a server lost while the final state is written matters only if its part is not safe") {
  Cluster cluster(2);
  cluster.everybody(1);
  cluster.run(1);
  cluster.leave(0, LeaveKind::kFinished, 8);
  cluster.done(1, 8);
  SUBCASE("its part is safe") {
    cluster.pass(kTimeoutMs + 2000, 1, {server_peer(1)});
    cluster.done(0, 8);
    CHECK(cluster.job().record.committed == Round(8));
    CHECK(cluster.job().record.finished);
  }
  SUBCASE("it is not") {
    cluster.pass(kTimeoutMs + 2000, 1, {server_peer(0)});
    CHECK_FALSE(cluster.job().record.initialised);
  }
  CHECK(cluster.phase() == "idle");
}

// ---- Snapshots ----

TEST_CASE("a snapshot's round is named ahead of the fastest shard by its pace") {
  Cluster cluster(2);
  cluster.everybody(1);
  cluster.run(1, with_snapshots(10, 0));
  std::uint64_t version = 0;
  const auto second = [&] {
    cluster.now += 1000;
    version += 50;
    cluster.beat_server(0, version - 1, version);
    cluster.beat_server(1, version - 9, version - 9);
    cluster.beat_worker(0);
    cluster.core.tick(cluster.now);
  };
  for (int i = 0; i < 9; ++i) second();
  CHECK(cluster.count<SnapshotAt>() == 0);
  second();
  const auto at = cluster.only<SnapshotAt>(server_peer(1));
  REQUIRE(at);
  CHECK(at->round.value > version + 10);  // 300 ms ahead at 50 rounds a second
  CHECK(at->round.value < version + 30);
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == at->round);
  second();
  CHECK(cluster.count<SnapshotAt>() == 2);  // one at a time
  cluster.done(0, at->round.value);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  cluster.done(1, at->round.value);
  CHECK(cluster.count<SnapshotCommit>() == 2);
  CHECK(cluster.registry.begin()->second.committed == at->round);
  CHECK(cluster.phase() == "running");
}

TEST_CASE("snapshots by rounds are named at multiples") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, with_snapshots(0, 25));
  cluster.core.tick(cluster.now);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nothing has been trained
  cluster.now += 1000;
  cluster.beat_server(0, 30, 30);
  cluster.core.tick(cluster.now);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == Round(50));
  cluster.now += 1000;
  cluster.beat_server(0, 51, 51);
  cluster.done(0, 50);
  cluster.core.tick(cluster.now);
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).back().round == Round(75));
}

TEST_CASE("a missed snapshot is tried again later and further ahead") {
  Cluster cluster(2);
  cluster.everybody(1);
  cluster.run(1, with_snapshots(1, 0));
  cluster.pass(2000, 1, {}, 10);
  const auto first = cluster.only<SnapshotAt>(server_peer(0));
  REQUIRE(first);
  cluster.done(0, first->round.value, false);
  cluster.done(1, first->round.value);  // the others' success is no use
  CHECK(cluster.count<SnapshotCommit>() == 0);
  cluster.pass(2000, 1, {}, 20);
  const auto named = cluster.to<SnapshotAt>(server_peer(0));
  REQUIRE(named.size() == 2);
  CHECK(named[1].round > first->round);
  cluster.all_done(named[1].round.value);
  CHECK(cluster.job().record.committed == named[1].round);
}

TEST_CASE("a disk that stays full is not asked every second") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, with_snapshots(1, 0));
  for (int i = 0; i < 300; ++i) {
    cluster.pass(1000, 1, {}, static_cast<std::uint64_t>(i));
    const auto named = cluster.to<SnapshotAt>(server_peer(0));
    if (!named.empty()) cluster.done(0, named.back().round.value, false);
  }
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() > 5);
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() < 40);
}

TEST_CASE("a snapshot whose message was lost does not end all snapshots") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, with_snapshots(1, 0));
  cluster.pass(2000, 1, {}, 10);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  SUBCASE("the connection was renewed") {
    cluster.say(PeerId(8888), Heartbeat{server_incarnation(0), {}});
    CHECK(cluster.only<SnapshotAt>(PeerId(8888))->round == cluster.only<SnapshotAt>(server_peer(0))->round);
  }
  SUBCASE("nothing tells of it") {
    cluster.pass(11 * kMinute, 1, {}, 12);
    CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() == 2);
  }
}

TEST_CASE("a heartbeat that was overtaken does not make the pace absurd") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, with_snapshots(5, 0));
  cluster.now += 1000;
  cluster.beat_server(0, 100, 100);
  cluster.now += 10;
  cluster.beat_server(0, 90, 90);
  cluster.pass(6000, 1, {}, 110);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round.value < 200);
}

TEST_CASE("no snapshot is begun once the job is asked to stop") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, with_snapshots(5, 0));
  cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
  cluster.pass(20'000, 1, {}, 50);
  CHECK(cluster.count<SnapshotAt>() == 0);
}

TEST_CASE("a commit that cannot be recorded drops no older snapshot") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1);
  cluster.leave(0, LeaveKind::kStopped, 5);
  cluster.save_fails = true;
  cluster.done(0, 5);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  CHECK(cluster.phase() == "idle");
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

TEST_CASE("a first snapshot that was never committed is taken too, but not by a changed training") {
  Cluster cluster(2);
  cluster.everybody(1);
  cluster.run(1);
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
    REQUIRE(again.last_open);
    CHECK_FALSE(again.open().resume);
    CHECK(again.open().job != id);
    CHECK(again.open().view == ViewId(2));
    // The registry now has two records of that name: the newer counts.
    Cluster third(2, again.records(), 9);
    CHECK(third.job().record.job == again.open().job);
  }
}

TEST_CASE("a server that comes back without its store is named, with the cure") {
  const Stopped before = stopped_at(20);
  Cluster cluster(2, before.records, 8);
  cluster.everybody(1);
  cluster.server(0, before.stored);
  cluster.sent.clear();
  cluster.join(0, {});
  const auto error = cluster.only<ControlError>(worker_peer(0));
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kStore);
  for (const char* word : {"server 1", "round 20", "'mnist'", "another job name"}) {
    CHECK(error->message.find(word) != std::string::npos);
  }
  CHECK(cluster.phase() == "idle");
}

TEST_CASE("a cluster with fewer servers than the job has state on is refused with both numbers") {
  const Stopped before = stopped_at(20, 3);
  Cluster cluster(2, before.records, 8);
  restarted(cluster, before.stored);
  cluster.join(0, {});
  const auto error = cluster.only<ControlError>(worker_peer(0));
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kTopology);
  CHECK(error->message.find("server 2") != std::string::npos);
  CHECK(error->message.find("2 servers") != std::string::npos);
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

}  // namespace tributary

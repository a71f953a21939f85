// CoordinatorCore: how a running view ends: stops, finishes, losses.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_life_test {

using namespace testing;

// ---- Stopping and finishing ----

TEST_CASE("nodes are told what came of the state that a job ended with") {
  TrainingCluster cluster(2);
  cluster.leave(0, LeaveKind::kStopped, 12, "rank 1 was told to stop (SIGINT)");
  CHECK(cluster.only<StopJob>(worker_peer(1))->reason == "rank 1 was told to stop (SIGINT)");
  CHECK(cluster.count<SnapshotDone>() == 0);
  cluster.done(0, 12);
  CHECK(cluster.count<SnapshotDone>() == 0);
  bool ok = true;
  SUBCASE("it is saved") {}
  SUBCASE("server 1 could not save its part") {
    ok = false;
  }
  cluster.done(1, 12, ok);
  CHECK(cluster.phase() == "idle");
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto told = required(cluster.only<SnapshotDone>(worker_peer(w)));
    CHECK(told.ok == ok);
    CHECK(told.round == Round(12));
    CHECK(told.message.starts_with("server 1: disk full; there is no snapshot") == !ok);
  }
  CHECK(cluster.errors.empty() == ok);
  CHECK(cluster.job().not_saved == (ok ? "" : "server 1: disk full"));
  // To a node that has not heard it.
  cluster.sent.clear();
  cluster.leave(1, LeaveKind::kStopped, 12);
  const auto again = required(cluster.only<SnapshotDone>(worker_peer(1)));
  CHECK(again.ok == ok);
}

TEST_CASE("a node that finishes for all ends training on the others") {
  TrainingCluster cluster(2, 1);
  cluster.leave(0, LeaveKind::kFinishesAll, 12, "rank 1 ended training: it is good enough");
  const auto stop = required(cluster.only<StopJob>(worker_peer(1)));
  CHECK(stop.kind == StopKind::kFinished);
  CHECK(stop.round == Round(12));
  CHECK(stop.reason == "rank 1 ended training: it is good enough");
  cluster.leave(1, LeaveKind::kFinished, 12);
  cluster.done(0, 12);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().record.finished);
  CHECK(cluster.job().record.committed == Round(12));
}

TEST_CASE("a snapshot that cannot be recorded is not saved") {
  TrainingCluster cluster(1, 1);
  cluster.leave(0, LeaveKind::kFinished, 12);
  cluster.save_fails = true;
  cluster.done(0, 12);
  const auto told = required(cluster.only<SnapshotDone>(worker_peer(0)));
  CHECK_FALSE(told.ok);
  CHECK(contains(told.message, "server 0 cannot record"));
}

TEST_CASE("servers without a store: nodes hear of it if the job was stopped, or asked for snapshots") {
  Cluster cluster(1);
  ServerHello hello = cluster.hello_of(0);
  hello.store = false;
  cluster.say(server_peer(0), hello);
  cluster.worker(0);
  LeaveKind kind = LeaveKind::kFinished;
  JoinOptions options;
  options.config.snapshot = SnapshotConfig{};
  bool missed = true;
  SUBCASE("complete, and nobody asked") {
    missed = false;
  }
  SUBCASE("complete, and somebody asked") {
    options.config.snapshot.every_rounds = 10;
  }
  SUBCASE("stopped") {
    kind = LeaveKind::kStopped;
  }
  cluster.run(1, options);
  cluster.leave(0, kind, 12);
  cluster.done(0, 12, false);
  CHECK(cluster.only<SnapshotDone>(worker_peer(0))->ok == !missed);
  CHECK(cluster.errors.empty() == !missed);
}

TEST_CASE("who asked for a stop is told to all, and outlives the coordinator") {
  TrainingCluster cluster(2);
  std::string who;
  SUBCASE("server 0") {
    who = "server 0 was told to stop";
    cluster.core.drain(cluster.now);
  }
  SUBCASE("server 1") {
    who = "server 1 was told to stop";
    cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
  }
  SUBCASE("a worker") {
    who = "worker host0 was told to stop";
    cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
  }
  CHECK(cluster.only<StopRequest>(worker_peer(1))->reason == who);
  cluster.leave(1, LeaveKind::kStopped, 12);
  CHECK(cluster.only<StopJob>(worker_peer(0))->reason == who);
  cluster.all_done(12);
  CHECK(cluster.job().last_stop == who);
  Cluster next(2, cluster.records());
  CHECK(next.job().last_stop == who);
  CHECK(next.job().max_version == Version(12));  // of a job that does not run: what there is of it
}

TEST_CASE("losses, refused peers and nodes that lag are warnings") {
  TrainingCluster cluster(2);
  cluster.warnings.clear();  // that nodes keep no pushes for lost servers
  ServerHello wrong = cluster.hello_of(1);
  wrong.servers = 3;
  cluster.say(PeerId(77), wrong);
  CHECK(cluster.warnings.size() == 1);
  cluster.leave(0, LeaveKind::kFailed, 3, "rank 0 died");
  REQUIRE(cluster.warnings.size() == 2);
  CHECK(contains(cluster.warnings[1], "rank 0 died"));
}

TEST_CASE("two workers of one name are told apart") {
  FullCluster cluster({.workers = 1, .servers = 1});
  cluster.say(worker_peer(1), WorkerHello{"host0", worker_incarnation(1)});
  REQUIRE(cluster.warnings.size() == 1);
  CHECK(contains(cluster.warnings[0], "host0 (2)"));
  cluster.say(worker_peer(1), WorkerHello{"host0", worker_incarnation(1)});  // says hello again
  CHECK(cluster.warnings.size() == 1);
  cluster.run(2);
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  CHECK(cluster.only<StopRequest>(worker_peer(0))->reason == "worker host0 (2) was told to stop");
}

TEST_CASE("a job is finished when every node is, its state kept by every shard, and resumes when it is joined again") {
  TrainingCluster cluster(2);
  cluster.leave(0, LeaveKind::kFinished, 30);
  CHECK(cluster.phase() == "running");
  cluster.leave(1, LeaveKind::kFinished, 30);
  CHECK(cluster.phase() == "stopping");
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(0), worker_peer(1)}) {
    const auto stop = required(cluster.only<StopJob>(peer));
    CHECK(stop.kind == StopKind::kFinished);
    CHECK(stop.round == Round(30));
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
  TrainingCluster cluster(2);
  cluster.have_answers = false;
  cluster.leave(1, LeaveKind::kStopped, 12, "Ctrl-C");
  const auto stop = required(cluster.only<StopJob>(worker_peer(0)));
  CHECK(stop.kind == StopKind::kStopped);
  CHECK(stop.round == Round(12));
  CHECK(stop.reason == "Ctrl-C");
  cluster.leave(1, LeaveKind::kStopped, 12);  // said again
  CHECK(cluster.count<StopJob>() == 2);
  cluster.leave(0, LeaveKind::kStopped, 12);
  CHECK(cluster.to<StopJob>(worker_peer(0)).size() == 1);
  CHECK(cluster.to<StopJob>(server_peer(0)).size() == 1);
  cluster.all_done(12);
  CHECK(cluster.job().record.committed == Round(12));
  CHECK_FALSE(cluster.job().record.finished);
}

TEST_CASE("servers answer until every node has the answers of the last round, is gone, or gets none for long") {
  TrainingCluster cluster(3);
  cluster.have_answers = false;
  cluster.leave(1, LeaveKind::kStopped, 12, "Ctrl-C");
  REQUIRE(cluster.only<StopJob>(worker_peer(0)));
  cluster.all_done(12);  // a snapshot of that round was under way: that is no answer to the stop
  CHECK(cluster.phase() == "stopping");
  cluster.leave(0, LeaveKind::kStopped, 12);
  CHECK(cluster.to<StopJob>(server_peer(0)).empty());
  const auto gets = [&](std::uint64_t answers) {
    NodePace pace;
    pace.job = cluster.open().job;
    pace.view = cluster.open().view;
    pace.node = NodeRank(2);
    pace.answers = answers;
    cluster.say(worker_peer(2), Heartbeat{worker_incarnation(2), {}, {pace}});
  };
  bool lost = false;
  SUBCASE("the last one has") {
    cluster.leave(2, LeaveKind::kStopped, 12);
  }
  SUBCASE("the last one failed") {
    cluster.leave(2, LeaveKind::kFailed, 11);
  }
  SUBCASE("the last one is lost") {
    cluster.pass(kTimeoutMs + 1000, 3, {worker_peer(2)});
    lost = true;
  }
  SUBCASE("the last one gets some, and then none") {
    for (std::uint64_t answers = 1; answers < 5; ++answers) {
      gets(answers);
      cluster.pass(14'000, 3);
      CHECK(cluster.to<StopJob>(server_peer(0)).empty());
    }
    cluster.pass(3000, 3);
  }
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto stop = required(cluster.only<StopJob>(server_peer(i)));
    CHECK(stop.round == Round(12));
  }
  cluster.all_done(12);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().record.committed == Round(12));
  CHECK(cluster.to<SnapshotDone>(worker_peer(2)).empty() == lost);
}

TEST_CASE("nodes with clocks of their own stop wherever they are, at a round that all shards know to be passed") {
  FullCluster cluster({.workers = 2});
  JoinOptions options;
  options.config.mode = Mode::kSsp;
  cluster.run(2, options);
  cluster.beat_server(0, 9, 11);
  cluster.beat_server(1, 8, 10);
  cluster.leave(1, LeaveKind::kStopped, 12);
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto stop = required(cluster.only<StopJob>(server_peer(i)));
    CHECK(stop.kind == StopKind::kStopped);
    CHECK(stop.round == Round(8));
  }
  cluster.all_done(8);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().record.committed == Round(8));
}

TEST_CASE("nodes with clocks of their own do not stop before the snapshot that they have") {
  FullCluster cluster({.workers = 2});
  JoinOptions options;
  options.config.mode = Mode::kSsp;
  options.config.snapshot.every_s = 1;
  cluster.run(2, options);
  for (std::uint64_t second = 0; second < 3 && !cluster.only<SnapshotAt>(server_peer(0)); ++second) {
    cluster.pass(1000, 2, {}, 8 + second);
  }
  const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
  cluster.all_done(at.round.value);
  REQUIRE(cluster.job().record.committed == at.round);
  cluster.leave(1, LeaveKind::kStopped, at.round.value + 1);  // heartbeats are older than the snapshot
  const auto stop = required(cluster.only<StopJob>(server_peer(0)));
  CHECK(stop.round == at.round);
}

TEST_CASE("a daemon that is stopped gets its word when the job's state is safe") {
  TrainingCluster cluster(2);
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
  TrainingCluster cluster(1, 1);
  cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
  cluster.say(PeerId(8888), Heartbeat{worker_incarnation(0), {}});
  cluster.say(PeerId(8888),
              LeaveJob{cluster.open().job, cluster.open().view, NodeRank(0), LeaveKind::kStopped, Round(5), {}, {}});
  cluster.done(0, 5);
  CHECK(cluster.only<DrainDone>(PeerId(8888)));
}

TEST_CASE("a worker on a new connection hears again of the snapshot that its ranks give their state for") {
  FullCluster cluster({.workers = 1, .servers = 1});
  JoinOptions options;
  options.redo_capacity = 16;
  cluster.run(1, options);
  cluster.pass(2000, 1, {}, 3);
  const auto named = required(cluster.only<SnapshotAt>(worker_peer(0)));
  cluster.say(PeerId(8888), Heartbeat{worker_incarnation(0), {}});
  const auto again = required(cluster.only<SnapshotAt>(PeerId(8888)));
  CHECK(again.round == named.round);
  CHECK(again.view == named.view);
}

TEST_CASE("a worker without jobs may go at once, whatever runs elsewhere") {
  FullCluster cluster({.workers = 2, .servers = 1});
  cluster.run(1);
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  CHECK(cluster.only<DrainDone>(worker_peer(1)));
  cluster.say(PeerId(6666), DrainRequest{4242});  // nobody that is known
  CHECK(cluster.only<DrainDone>(PeerId(6666)));
  CHECK(cluster.count<StopRequest>() == 0);
  CHECK(cluster.phase() == "running");
}

TEST_CASE("draining the coordinator stops what runs and sends away what waits") {
  FullCluster cluster({.workers = 3, .servers = 1});
  cluster.join(2, {.job = "waiting", .nodes = 2});
  cluster.join(1, {.job = "opening"});
  const JobId opening = cluster.open().job;
  cluster.run(1);
  cluster.core.drain(cluster.now);
  cluster.core.drain(cluster.now);
  CHECK(cluster.only<StopRequest>(worker_peer(0)));
  for (const std::uint32_t w : {1u, 2u}) {
    const auto error = required(cluster.only<ControlError>(worker_peer(w)));
    CHECK(error.code == ErrorCode::kStopped);
    CHECK(error.job == (w == 1 ? "opening" : "waiting"));
  }
  CHECK(cluster.only<StopJob>(server_peer(0))->job == opening);
  CHECK_FALSE(cluster.core.idle());
  cluster.join(1, {.job = "late"});
  CHECK(cluster.to<ControlError>(worker_peer(1)).size() == 2);
  cluster.leave(0, LeaveKind::kStopped, 3);
  cluster.done(0, 3);
  CHECK(cluster.core.idle());
}

TEST_CASE("nodes that finished wait for the others as long as those live, with and without snapshots") {
  for (const std::uint32_t every_s : {0u, 10u}) {
    for (const bool they_finish : {true, false}) {
      TrainingCluster cluster({.workers = 2, .servers = 1}, with_snapshots(every_s, 0));
      cluster.pass(5 * kMinute, 2);
      cluster.sent.clear();
      cluster.leave(0, LeaveKind::kFinished, 30);
      cluster.pass(60 * kMinute, 2, {}, 29);  // its ranks evaluate
      CHECK(cluster.phase() == "running");
      CHECK(cluster.count<SnapshotAt>() == 0);
      const auto told = [](const std::string& line) {
        return contains(line, "finished after round 30; waiting for node 1,");
      };
      CHECK(std::ranges::count_if(cluster.logged, told) == 1);
      if (they_finish) {
        cluster.leave(1, LeaveKind::kFinished, 30);
      } else {
        cluster.leave(1, LeaveKind::kFailed, 30, "a rank died");
      }
      const auto stop = required(cluster.only<StopJob>(worker_peer(1)));
      CHECK(stop.kind == (they_finish ? StopKind::kFinished : StopKind::kStopped));
      CHECK(stop.round == Round(30));
    }
  }
}

TEST_CASE("a node that has begun another round than those that finished is stopped, and told why") {
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    FullCluster cluster({.workers = 2, .servers = 1});
    JoinOptions options;
    options.config.mode = mode;
    cluster.run(2, options);
    const auto given = [&](std::uint64_t round, std::uint64_t answers) {
      NodePace pace{.job = cluster.open().job, .view = cluster.open().view, .node = NodeRank(1)};
      pace.said = {Round(round - 1), Round(round)};
      pace.answers = answers;
      cluster.say(worker_peer(1), Heartbeat{worker_incarnation(1), {}, {pace}});
    };
    cluster.sent.clear();
    cluster.leave(0, LeaveKind::kFinished, 30);
    given(30, 1);
    cluster.pass(60'000, 2, {}, 30);  // it evaluates
    CHECK(cluster.phase() == "running");
    given(31, 1);
    cluster.pass(6'000, 2, {}, 30);
    given(31, 2);  // an answer of an earlier round still came
    cluster.pass(6'000, 2, {}, 30);
    CHECK(cluster.phase() == "running");
    cluster.pass(6'000, 2, {}, 30);
    const auto stop = cluster.only<StopJob>(worker_peer(1));
    REQUIRE(stop.has_value() == (mode == Mode::kSync));  // with clocks nodes make as many rounds as they like
    if (!stop) continue;
    CHECK(stop->kind == StopKind::kStopped);
    CHECK(stop->round == Round(30));
    CHECK(stop->reason ==
          "node 0 finished after round 30, and node 1 has begun another one: all ranks must make as many steps");
  }
}

TEST_CASE("a node that is lost after another has finished does not cost the others' last round") {
  TrainingCluster cluster(2, 1);
  cluster.have_answers = false;  // servers are told at once: nobody waits for answers
  cluster.leave(0, LeaveKind::kFinished, 30);
  SUBCASE("it fails") {
    cluster.leave(1, LeaveKind::kFailed, 29, "evaluation crashed");
  }
  SUBCASE("its worker is not heard any more") {
    cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(1)});
  }
  const auto stop = required(cluster.only<StopJob>(server_peer(0)));
  CHECK(stop.kind == StopKind::kStopped);
  CHECK(stop.round == Round(30));
}

TEST_CASE("a worker that goes after it has finished is not missed") {
  TrainingCluster cluster(2, 1);
  cluster.leave(0, LeaveKind::kFinished, 30);
  cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(0)});
  CHECK(cluster.phase() == "running");
  cluster.leave(1, LeaveKind::kFinished, 30);
  CHECK(cluster.only<StopJob>(server_peer(0))->kind == StopKind::kFinished);
}

TEST_CASE("a node that joins again while the others finish is asked to wait") {
  TrainingCluster cluster(2, 1);
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
  TrainingCluster cluster(1);
  cluster.leave(0, LeaveKind::kStopped, 5);
  SUBCASE("it says so") {
    cluster.done(0, 5);
    cluster.done(1, 5, false);
  }
  SUBCASE("it never answers") {
    cluster.done(0, 5);
    cluster.pass(kMinute + 2000, 1, {server_peer(0), server_peer(1)});  // nor does it say that it still has the job
  }
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.count<SnapshotCommit>() == 0);
  CHECK_FALSE(cluster.job().record.initialised);
}

TEST_CASE("a final state may take as long to write as its servers say that they still have the job") {
  TrainingCluster cluster(1);
  cluster.leave(0, LeaveKind::kStopped, 5);
  cluster.done(0, 5);
  cluster.pass(10 * kMinute, 1, {}, 5);
  CHECK(cluster.phase() == "stopping");
  cluster.done(1, 5);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().record.committed == Round(5));
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
  TrainingCluster cluster(2);
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
  const auto stop = required(cluster.only<StopJob>(worker_peer(0)));
  CHECK(stop.kind == StopKind::kRestart);
  CHECK(contains(stop.reason, reason));
  CHECK(cluster.only<StopJob>(server_peer(0)));
  CHECK(cluster.phase() == "idle");
  CHECK(contains(cluster.job().last_stop, reason));
  cluster.everybody(2);
  cluster.run(2);
  CHECK(cluster.phase() == "running");
  CHECK(cluster.open().view == ViewId(2));
  CHECK_FALSE(cluster.open().resume);
  // Late messages of the ended view change nothing.
  cluster.say(worker_peer(0),
              LeaveJob{cluster.open().job, ViewId(1), NodeRank(0), LeaveKind::kFailed, Round(3), "late", {}});
  cluster.say(server_peer(0), SnapshotDone{cluster.open().job, ViewId(1), Round(3), true, 1, {}});
  CHECK(cluster.phase() == "running");
}

TEST_CASE("a member that attaches again while the job runs restarts it, unless what it brings does not fit") {
  TrainingCluster cluster(2, 1);
  cluster.join(1, {.node = 1, .nodes = 2, .tensors = {{"other", {5}}}});
  CHECK(cluster.only<ControlError>(worker_peer(1))->code == ErrorCode::kLayoutMismatch);
  CHECK(cluster.phase() == "running");
  SUBCASE("with other pushes than it had") {
    cluster.join(1, {.node = 1, .nodes = 2, .redo_job = cluster.open().job, .redo_last = 3, .redo_capacity = 16});
  }
  SUBCASE("with the same: its worker knows whether the welcome was lost or the view is over there") {
    cluster.join(1, {.node = 1, .nodes = 2});
    CHECK(cluster.phase() == "running");
    CHECK(cluster.only<JobWelcome>(worker_peer(1)).has_value());
    cluster.leave(1, LeaveKind::kFailed, 0, "the view is over on this node");
    cluster.join(1, {.node = 1, .nodes = 2});
  }
  CHECK(cluster.only<StopJob>(worker_peer(0))->kind == StopKind::kRestart);
  CHECK(cluster.phase() == "gathering");
}

TEST_CASE("a node that comes back after it has finished waits for the others to finish") {
  TrainingCluster cluster(2, 1);
  cluster.leave(1, LeaveKind::kFinished, 9);
  cluster.say(PeerId(3001), WorkerHello{"host1", 99});
  cluster.now += kTimeoutMs / 2;  // the process before it is silent
  cluster.sent.clear();
  cluster.say(PeerId(3001), cluster.join_of({.node = 1, .nodes = 2}));
  check_error(cluster, PeerId(3001), ErrorCode::kUnavailable, {"to finish"});
}

TEST_CASE("a welcome that never arrived: the worker leaves by name and the view is given up") {
  TrainingCluster cluster(2, 1);
  cluster.say(worker_peer(1), LeaveJob{{}, {}, NodeRank(1), LeaveKind::kFailed, {}, "attach timed out", "mnist"});
  CHECK(cluster.only<StopJob>(worker_peer(0))->kind == StopKind::kRestart);
}

TEST_CASE("a server lost while the final state is written matters only if its part is not safe") {
  TrainingCluster cluster(1);
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

TEST_CASE("servers that wait for what nodes keep hear it while nodes get on with taking answers of others") {
  TrainingCluster cluster(2);
  cluster.have_answers = false;
  cluster.leave(0, LeaveKind::kStopped, 8);
  CHECK(cluster.count<StopJob>() == 2);
  cluster.pass(17'000, 2);  // it gets no answer, and is not waited for
  CHECK(cluster.only<StopJob>(server_peer(1)));
  cluster.sent.clear();
  NodePace pace;
  pace.job = cluster.open().job;
  pace.view = cluster.open().view;
  pace.node = NodeRank(1);
  const auto beats = [&](std::uint64_t answers) {
    pace.answers = answers;
    cluster.sent.clear();
    cluster.say(worker_peer(1), Heartbeat{worker_incarnation(1), {}, {pace}});
    for (const std::uint16_t s : {0, 1}) CHECK(cluster.to<StopJob>(server_peer(s)).size() <= 1);
    return cluster.count<StopJob>();
  };
  CHECK(beats(3) == 2);
  CHECK(beats(3) == 0);
  CHECK(beats(4) == 2);
  cluster.sent.clear();
  cluster.leave(1, LeaveKind::kStopped, 8);  // now it sends what it keeps
  const auto again = required(cluster.only<StopJob>(server_peer(0)));
  CHECK(again.kind == StopKind::kStopped);
  CHECK(again.round == Round(8));
  cluster.sent.clear();
  cluster.leave(1, LeaveKind::kStopped, 8);
  CHECK(cluster.count<StopJob>() == 0);
  cluster.all_done(8);
  CHECK(cluster.phase() == "idle");
}

// ---- Who is late ----

TEST_CASE("a node that lags is named to people while it does, and forgotten with its view") {
  TrainingCluster cluster(3, 1);
  NodePace paces[3];
  const auto beat = [&](std::uint32_t w, std::uint64_t compute_ms) {
    NodePace& pace = paces[w];
    pace.job = cluster.open().job;
    pace.view = cluster.open().view;
    pace.node = NodeRank(w);
    pace.rounds += 10;
    pace.compute_ns += 10 * compute_ms * 1'000'000;
    cluster.say(worker_peer(w), Heartbeat{worker_incarnation(w), {}, {pace}});
  };
  const auto told = [&](const std::string& text) {
    return std::ranges::count_if(cluster.logged, [&](const auto& line) { return contains(line, text); });
  };
  for (int i = 0; i < 6; ++i) {
    beat(0, 50);
    beat(1, 50);
    beat(2, 150);
  }
  CHECK(told("node 2 of job 'mnist' (worker host2) takes 3.0 times as long for a round as the others") == 1);
  CHECK(told("phase compute") == 1);
  REQUIRE(cluster.job().paces.size() == 3);
  CHECK(cluster.job().paces[2].lag.has_value());
  CHECK_FALSE(cluster.job().paces[0].lag.has_value());
  REQUIRE(cluster.job().members.size() == 3);
  CHECK(cluster.job().members.at(2).worker == "host2");
  // A worker's report about another node, or about a view that is over, is ignored.
  cluster.say(worker_peer(0), Heartbeat{worker_incarnation(0), {}, {paces[2]}});
  paces[2].view = ViewId(77);
  cluster.say(worker_peer(2), Heartbeat{worker_incarnation(2), {}, {paces[2]}});
  for (int i = 0; i < 4; ++i) beat(2, 50);
  CHECK(told("has caught up with the others") == 1);
  cluster.leave(1, LeaveKind::kFailed, 3);
  CHECK(cluster.job().paces.empty());
}

// ---- While the record is being saved ----

TEST_CASE("nobody hears of a view before its record is saved") {
  FullCluster cluster({.workers = 2});
  cluster.disk_stands = true;
  cluster.join(0, {});
  CHECK(cluster.count<OpenJob>() == 0);
  CHECK(cluster.phase() == "gathering");
  CHECK(contains(cluster.job().waiting_for, "disk"));
  CHECK_FALSE(cluster.core.idle());
  SUBCASE("and opens then") {
    cluster.disk_goes_on();
    CHECK(cluster.count<OpenJob>() == 2);
    CHECK(cluster.registry.at(cluster.open().job.value).view == cluster.open().view);
  }
  SUBCASE("and it is given up when its node is lost meanwhile") {
    cluster.pass(15'000, 0);
    CHECK(cluster.count<StopJob>() == 0);
    cluster.disk_goes_on();
    CHECK(cluster.count<OpenJob>() == 0);
    CHECK(cluster.phase() == "idle");
    cluster.worker(0);
    cluster.join(0, {});
    CHECK(cluster.open().view == ViewId(2));  // the disk has view 1
    CHECK(cluster.registry.size() == 1);      // under the id that it has, too
  }
  SUBCASE("and with a server that comes as a new process meanwhile it is thought over") {
    ServerHello hello = cluster.hello_of(1);
    hello.incarnation = 77;
    hello.exclusive = "store";
    cluster.pass(15'000, 1, {server_peer(1)});
    cluster.say(PeerId(1501), hello);
    CHECK(cluster.count<OpenJob>() == 0);
    cluster.disk_goes_on();
    CHECK(cluster.count<OpenJob>() == 2);
    CHECK(cluster.open().view == ViewId(2));
  }
  SUBCASE("a disk that has no room is told to its trainers, and the next view has another number") {
    cluster.save_fails = true;
    cluster.disk_goes_on();
    CHECK(cluster.count<OpenJob>() == 0);
    check_error(cluster, worker_peer(0), ErrorCode::kUnavailable, {"cannot record it", "the disk is full"});
    cluster.save_fails = false;
    cluster.join(0, {});
    CHECK(cluster.open().view == ViewId(2));  // the disk may have view 1 all the same
  }
}

TEST_CASE("a snapshot is told when the record is saved that has it, and a job ends then") {
  TrainingCluster cluster(1);
  cluster.leave(0, LeaveKind::kStopped, 40);
  cluster.sent.clear();
  cluster.disk_stands = true;
  cluster.all_done(40);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  CHECK(cluster.count<SnapshotDone>() == 0);
  CHECK(cluster.phase() == "stopping");
  SUBCASE("it is saved") {
    cluster.disk_goes_on();
    CHECK(cluster.count<SnapshotCommit>() == 3);
    const auto told = required(cluster.only<SnapshotDone>(worker_peer(0)));
    CHECK(told.ok);
  }
  SUBCASE("it is not saved in a minute") {
    cluster.pass(70'000, 1);
    const auto told = required(cluster.only<SnapshotDone>(worker_peer(0)));
    CHECK_FALSE(told.ok);
    CHECK(contains(told.message, "server 0 cannot record"));
    cluster.disk_goes_on();
    CHECK(cluster.record().committed == Round(40));
    CHECK(cluster.count<SnapshotCommit>() > 0);
  }
  CHECK(cluster.phase() == "idle");
}

TEST_CASE("a record whose save failed does not come back after the job was removed") {
  TrainingCluster cluster(1);
  cluster.save_fails = true;
  cluster.stop_at(0, 40);
  cluster.pass(70'000, 1);
  REQUIRE(cluster.phase() == "idle");
  cluster.save_fails = false;
  cluster.disk_stands = true;
  REQUIRE(cluster.remove_job(cluster.job().name));
  cluster.core.tick(cluster.now + 5000);  // time to try the save again
  cluster.disk_goes_on();
  CHECK(cluster.registry.empty());
}

TEST_CASE("jobs that begin while the disk stands have ids of their own") {
  FullCluster cluster({.workers = 2});
  cluster.disk_stands = true;
  JoinOptions one, other;
  other.job = "other";
  cluster.join(0, one);
  cluster.join(1, other);
  cluster.disk_goes_on();
  CHECK(cluster.registry.size() == 2);
}

}  // namespace tributary::coordinator_life_test

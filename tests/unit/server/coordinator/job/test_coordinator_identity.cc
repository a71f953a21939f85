// Identities of the coordinator's peers: incarnations, connections that come back, processes that follow each other.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_identity_test {

using namespace testing;

TEST_CASE("a heartbeat of somebody unknown is answered with nobody's incarnation") {
  Cluster cluster(1);
  cluster.beat_worker(3);
  const auto reply = required(cluster.only<HeartbeatReply>(worker_peer(3)));
  CHECK(reply.coordinator_incarnation == 0);
  cluster.sent.clear();
  cluster.worker(3);
  cluster.beat_worker(3);
  CHECK(cluster.only<HeartbeatReply>(worker_peer(3))->coordinator_incarnation == 7);
}

TEST_CASE("a worker that reconnected is known again by its heartbeat") {
  FullCluster cluster({.workers = 1, .servers = 1});
  const PeerId renewed(9999);
  cluster.say(renewed, Heartbeat{worker_incarnation(0), {}});
  cluster.say(renewed, cluster.join_of({}));
  cluster.all_ready();
  CHECK(cluster.only<JobWelcome>(renewed));
}

TEST_CASE("a server whose connection was renewed while it loads is told again") {
  FullCluster cluster({.workers = 1});
  cluster.join(0, {});
  cluster.ready(0);
  cluster.sent.clear();
  cluster.say(PeerId(7777), Heartbeat{server_incarnation(1), {}});
  cluster.say(PeerId(7778), Heartbeat{server_incarnation(0), {}});  // ready already
  CHECK(cluster.only<OpenJob>(PeerId(7777)));
  CHECK_FALSE(cluster.only<OpenJob>(PeerId(7778)));
  cluster.say(PeerId(7777), ShardReady{cluster.open().job, cluster.open().view, true, {}, {}});
  CHECK(cluster.phase() == "running");
}

TEST_CASE("a server that was never told that it is known says hello again, and is told what it has missed") {
  FullCluster cluster({.workers = 1});
  cluster.join(0, {});
  REQUIRE(cluster.phase() == "opening");
  cluster.sent.clear();
  cluster.say(server_peer(1), cluster.hello_of(1));  // on the same connection nothing is missed
  CHECK(cluster.count<OpenJob>() == 0);
  const PeerId elsewhere(4711);
  cluster.say(elsewhere, cluster.hello_of(1));
  CHECK(cluster.only<HelloReply>(elsewhere));
  CHECK(cluster.only<OpenJob>(elsewhere));
}

TEST_CASE("a server whose connection was renewed says again what it keeps of the last view") {
  TrainingCluster cluster(1);
  cluster.answers_kept = false;  // what it was told, or what it said, is lost with the connection
  cluster.leave(0, LeaveKind::kFailed, 3, "rank 1 died");
  CHECK(cluster.phase() == "idle");
  const std::vector<std::pair<PeerId, StopJob>> ended = std::exchange(cluster.ended_views, {});
  REQUIRE(ended.size() == 2);
  cluster.core.on_message(server_peer(1), ShardKept{ended[1].second.job, ended[1].second.view, false, {}, {}},
                          cluster.now);
  cluster.join(0, {});
  CHECK(cluster.phase() == "gathering");
  cluster.sent.clear();

  const PeerId renewed(7777);
  cluster.say(renewed, Heartbeat{server_incarnation(0), {}});
  cluster.say(PeerId(7778), Heartbeat{server_incarnation(1), {}});  // has said it
  const auto stop = required(cluster.only<StopJob>(renewed));
  CHECK(stop.kind == StopKind::kRestart);
  CHECK(stop.job == cluster.open().job);
  CHECK(stop.view == cluster.open().view);
  CHECK(contains(stop.reason, "rank 1 died"));
  CHECK(cluster.count<StopJob>() == 1);
  cluster.core.on_message(renewed, ShardKept{stop.job, stop.view, false, {}, {}}, cluster.now);
  cluster.write();
  CHECK(cluster.phase() == "opening");
}

TEST_CASE("a running job's node rank cannot be taken by another worker") {
  FullCluster cluster({.workers = 3, .servers = 1});
  cluster.run(2);
  cluster.join(2, {.node = 1, .nodes = 2});
  check_error(cluster, worker_peer(2), ErrorCode::kTopology,
              {"node rank 1", "running with 2 nodes", "another job name"});
  CHECK(cluster.phase() == "running");
}

TEST_CASE("a restarted worker daemon gets its node back when its old process stays silent, a namesake does not") {
  TrainingCluster cluster(2, 1);
  cluster.now += 100;
  const PeerId fresh(4000);
  cluster.say(fresh, WorkerHello{"host1", 4000});
  cluster.say(fresh, cluster.join_of({.node = 1, .nodes = 2}));
  check_error(cluster, fresh, ErrorCode::kUnavailable, {"node rank 1", "host1", "in a moment"});
  SUBCASE("silent") {
    cluster.now += kTimeoutMs / 4;
    cluster.say(fresh, cluster.join_of({.node = 1, .nodes = 2}));
    CHECK(required(cluster.only<StopJob>(worker_peer(0))).kind == StopKind::kRestart);
    CHECK(cluster.phase() == "gathering");
    cluster.join(0, {.node = 0, .nodes = 2});
    CHECK(cluster.phase() == "opening");
  }
  SUBCASE("alive") {
    cluster.now += 1;
    cluster.beat_worker(1);
    cluster.sent.clear();
    cluster.now += kTimeoutMs / 4;
    cluster.say(fresh, cluster.join_of({.node = 1, .nodes = 2}));
    check_error(cluster, fresh, ErrorCode::kTopology, {"node rank 1", "taken"});
    CHECK(cluster.phase() == "running");
  }
}

TEST_CASE("a daemon that holds what only one process can hold has outlived the one before") {
  Cluster cluster(1);
  ServerHello server = cluster.hello_of(0);
  server.exclusive = "store";
  cluster.say(server_peer(0), server);
  WorkerHello worker{"host0", worker_incarnation(0)};
  worker.exclusive = "socket";
  cluster.say(worker_peer(0), worker);
  cluster.run(1);
  std::string reason;
  SUBCASE("server") {
    server.incarnation = 99;
    cluster.say(PeerId(5000), server);
    CHECK(cluster.only<HelloReply>(PeerId(5000)));
    reason = "server 0 came back";
  }
  SUBCASE("worker") {
    worker.incarnation = 99;
    cluster.say(PeerId(5000), worker);
    reason = "host0 came back";
  }
  CHECK(cluster.phase() == "idle");
  CHECK(contains(cluster.job().last_stop, reason));
}

TEST_CASE("a second server process with an index takes over only if the first is silent") {
  TrainingCluster cluster(1);
  ServerHello hello = cluster.hello_of(1);
  hello.incarnation = 99;
  cluster.now += 100;
  cluster.say(PeerId(5000), hello);
  check_error(cluster, PeerId(5000), ErrorCode::kUnavailable, {"server 1", "another process", "100 ms", "index"});
  CHECK(cluster.phase() == "running");
  cluster.sent.clear();
  cluster.now += kTimeoutMs / 4;
  SUBCASE("silent") {
    cluster.say(PeerId(5000), hello);
    CHECK(cluster.only<HelloReply>(PeerId(5000)));
    CHECK(contains(required(cluster.only<StopJob>(worker_peer(0))).reason, "server 1"));
    CHECK(cluster.phase() == "idle");
  }
  SUBCASE("alive") {
    cluster.beat_server(1);
    cluster.say(PeerId(5000), hello);
    CHECK_FALSE(cluster.only<HelloReply>(PeerId(5000)));
    CHECK(cluster.phase() == "running");
    // Heard long after the newcomer came: there are two, and that will not change by itself.
    check_error(cluster, PeerId(5000), ErrorCode::kTopology, {"server 1", "is alive", "[server] index"});
  }
}

TEST_CASE(
    "a server whose connection was renewed while a job stops is told again, until it has said what became of it") {
  TrainingCluster cluster(1);
  cluster.leave(0, LeaveKind::kFinished, 9);
  CHECK(cluster.phase() == "stopping");
  cluster.done(1, 9);
  cluster.sent.clear();
  cluster.say(PeerId(7777), Heartbeat{server_incarnation(0), {}});
  cluster.say(PeerId(7778), Heartbeat{server_incarnation(1), {}});  // is done
  const auto stop = required(cluster.only<StopJob>(PeerId(7777)));
  CHECK(stop.kind == StopKind::kFinished);
  CHECK(stop.round == Round(9));
  CHECK(cluster.count<StopJob>() == 1);
}

TEST_CASE("a worker whose connection was renewed is told again where its jobs are") {
  FullCluster cluster({.workers = 2, .servers = 1});
  JoinOptions options;
  options.nodes = 2;
  cluster.join(0, options);
  options.node = 1;
  cluster.join(1, options);
  cluster.sent.clear();
  const PeerId renewed(7777);
  cluster.say(renewed, Heartbeat{worker_incarnation(1), {}});
  CHECK(cluster.count<JobWelcome>() == 0);  // nothing has been said yet
  cluster.all_ready();
  cluster.sent.clear();

  const PeerId again(7778);
  SUBCASE("welcome") {
    cluster.say(again, Heartbeat{worker_incarnation(1), {}});
    const auto welcome = required(cluster.only<JobWelcome>(again));
    CHECK(welcome.view == cluster.open().view);
    CHECK(welcome.node == NodeRank(1));
    CHECK(welcome.nodes == 2);
    CHECK(cluster.count<JobWelcome>() == 1);
    cluster.say(again, Heartbeat{worker_incarnation(1), {}});
    CHECK(cluster.count<JobWelcome>() == 1);
  }
  SUBCASE("asked to stop") {
    cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
    cluster.sent.clear();
    cluster.say(again, Heartbeat{worker_incarnation(1), {}});
    CHECK(cluster.only<StopRequest>(again).has_value());
  }
  SUBCASE("stopped") {
    cluster.leave(0, LeaveKind::kStopped, 4);
    cluster.sent.clear();
    cluster.say(again, Heartbeat{worker_incarnation(1), {}});
    const auto stop = required(cluster.only<StopJob>(again));
    CHECK(stop.kind == StopKind::kStopped);
    CHECK(stop.round == Round(4));
  }
}

TEST_CASE("a join that is said again disturbs nothing, and is answered if the job runs") {
  FullCluster cluster({.workers = 1, .servers = 1});
  cluster.join(0, {});
  CHECK(cluster.phase() == "opening");
  cluster.sent.clear();
  cluster.join(0, {});
  CHECK(cluster.phase() == "opening");
  CHECK(cluster.sent.empty());
  cluster.all_ready();
  cluster.sent.clear();
  cluster.join(0, {});
  CHECK(cluster.phase() == "running");
  CHECK(cluster.only<JobWelcome>(worker_peer(0)).has_value());
  // With other pushes kept it is another attach: the view is over.
  JoinOptions other;
  other.redo_job = cluster.open().job;
  other.redo_last = 3;
  other.redo_capacity = 16;
  cluster.join(0, other);
  CHECK(cluster.count<StopJob>() > 0);
}

TEST_CASE("a peer that is refused for ever is told each time, and logged once") {
  Cluster cluster;
  ServerHello hello = cluster.hello_of(0);
  hello.servers = 9;
  const auto logged = [&] {
    return std::ranges::count_if(cluster.logged, [](const auto& line) { return line.find("refused a peer") == 0; });
  };
  for (int i = 0; i < 100; ++i) {
    cluster.say(PeerId(900), hello);
    cluster.tick(cluster.now += 1000);
  }
  CHECK(cluster.count<ControlError>() == 100);
  CHECK(logged() == 1);
  cluster.tick(cluster.now += RefusalLog::kForgetMs);
  cluster.say(PeerId(900), hello);
  CHECK(logged() == 2);
}

TEST_CASE("a job whose nodes left before it opened is forgotten") {
  FullCluster cluster({.workers = 2});
  cluster.join(0, {.node = 0, .nodes = 2});
  REQUIRE(cluster.phase() == "gathering");
  cluster.pass(3 * kTimeoutMs, 2, {worker_peer(0)});
  CHECK(cluster.core.jobs().empty());
}

}  // namespace tributary::coordinator_identity_test

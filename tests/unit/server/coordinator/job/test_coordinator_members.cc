// CoordinatorCore: elastic jobs, whose nodes come and go.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_members_test {

using namespace testing;

namespace {

JoinOptions elastic(std::uint32_t min_nodes = 1) {
  JoinOptions options;
  options.config.membership.on_worker_loss = OnLoss::kContinue;
  options.config.membership.min_nodes = min_nodes;
  options.config.membership.rejoin_ms = 5000;
  return options;
}

void join_as(Cluster& cluster, std::uint32_t w, std::uint32_t nodes, JoinOptions options = elastic()) {
  options.node = w;
  options.nodes = nodes;
  cluster.join(w, options);
}

// Two nodes, servers that keep rounds 10 and 11.
Cluster& running_pair(Cluster& cluster, const JoinOptions& options = elastic()) {
  cluster.everybody(2);
  cluster.run(2, options);
  for (std::uint16_t i = 0; i < 2; ++i) cluster.keep(i, 10, 11);
  return cluster;
}

}  // namespace

TEST_CASE("members are told which node of how many they are") {
  FullCluster cluster({.workers = 2});
  join_as(cluster, 0, 2);
  CHECK(cluster.phase() == "gathering");  // its first view has as many nodes as the trainers say
  CHECK(contains(cluster.job().waiting_for, "1 more of 2 nodes"));
  join_as(cluster, 1, 2);
  cluster.all_ready();
  CHECK(cluster.phase() == "running");
  CHECK(welcome_of(cluster, 0).node == NodeRank(0));
  CHECK(welcome_of(cluster, 1).node == NodeRank(1));
  CHECK(welcome_of(cluster, 0).nodes == 2);
  CHECK(welcome_of(cluster, 0).members == members_hash({0, 1}));
  CHECK(cluster.job().record.members == std::vector<std::uint32_t>{0, 1});
}

TEST_CASE("a worker that joins as another node leaves its old place, whose leave was lost") {
  FullCluster cluster({.workers = 2});
  cluster.join(0, {.node = 0, .nodes = 2});
  cluster.join(0, {.node = 1, .nodes = 2});
  CHECK(cluster.phase() == "gathering");
  cluster.join(1, {.node = 0, .nodes = 2});
  cluster.all_ready();
  CHECK(cluster.phase() == "running");
  CHECK(welcome_of(cluster, 0).node == NodeRank(1));
  CHECK(welcome_of(cluster, 1).node == NodeRank(0));
}

TEST_CASE("a first view does not wait for as many nodes as one said that has gone again") {
  FullCluster cluster({.workers = 3});
  join_as(cluster, 2, 3);
  join_as(cluster, 0, 2);
  join_as(cluster, 1, 2);
  CHECK(cluster.phase() == "opening");
  FullCluster other({.workers = 3});
  join_as(other, 2, 3);
  join_as(other, 0, 2);
  other.say(worker_peer(2), DrainRequest{worker_incarnation(2)});
  CHECK(other.phase() == "gathering");
  CHECK(contains(other.job().waiting_for, "1 more of 2 nodes"));
  join_as(other, 1, 2);
  CHECK(other.phase() == "opening");
  CHECK(other.open().nodes == 2);
}

TEST_CASE("when a node is lost the others go on where the servers are, with ranks dealt anew") {
  Cluster cluster;
  running_pair(cluster);
  cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(0)});
  CHECK(cluster.only<StopJob>(worker_peer(1)));
  CHECK(cluster.phase() == "idle");
  cluster.sent.clear();
  join_as(cluster, 1, 2);
  CHECK(cluster.phase() == "opening");
  CHECK(cluster.open().nodes == 1);
  CHECK(cluster.open().kept);
  cluster.all_ready();
  CHECK(welcome_of(cluster, 1).node == NodeRank(0));
  CHECK(welcome_of(cluster, 1).nodes == 1);
  CHECK(welcome_of(cluster, 1).resume_round == Round(10));
  CHECK(welcome_of(cluster, 1).members == members_hash({1}, ViewId(2)));
  CHECK(cluster.job().record.world_size == 2);
}

TEST_CASE("without on_worker_loss = continue the job waits for the lost node") {
  Cluster cluster;
  running_pair(cluster, {});
  cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(0)});
  join_as(cluster, 1, 2, {});
  cluster.pass(60'000, 2, {worker_peer(0)});
  CHECK(cluster.phase() == "gathering");
  CHECK(cluster.job().waiting_for == "node 0");
}

TEST_CASE("a node that joins ends the view, and the next one has it") {
  Cluster cluster;
  running_pair(cluster);
  cluster.worker(5);
  join_as(cluster, 5, 6);
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto stop = required(cluster.only<StopJob>(worker_peer(w)));
    CHECK(stop.kind == StopKind::kRestart);
    CHECK(stop.reason == "node 5 joins");
  }
  CHECK(cluster.phase() == "gathering");
  CHECK(cluster.job().waiting_for == "node 0, node 1");
  cluster.sent.clear();
  join_as(cluster, 1, 2);
  CHECK(cluster.phase() == "gathering");  // node 0 is alive: it is waited for
  join_as(cluster, 0, 2);
  cluster.all_ready();
  CHECK(cluster.phase() == "running");
  CHECK(welcome_of(cluster, 5).node == NodeRank(2));
  CHECK(welcome_of(cluster, 5).nodes == 3);
  CHECK(welcome_of(cluster, 5).resume_round == Round(10));
}

TEST_CASE("nodes of the last view that do not attach again in time are left behind") {
  Cluster cluster;
  running_pair(cluster);
  cluster.worker(2);
  join_as(cluster, 2, 3);
  join_as(cluster, 1, 2);
  cluster.pass(4000, 3);
  CHECK(cluster.phase() == "gathering");
  cluster.pass(2000, 3);
  CHECK(cluster.phase() == "opening");
  CHECK(cluster.open().nodes == 2);
  cluster.all_ready();
  cluster.sent.clear();
  join_as(cluster, 0, 2);  // here it is after all
  join_as(cluster, 1, 2);
  join_as(cluster, 2, 3);
  cluster.all_ready();
  CHECK(welcome_of(cluster, 0).nodes == 3);
}

TEST_CASE("who does not fit the job does not disturb it") {
  Cluster cluster;
  running_pair(cluster);
  cluster.worker(2);
  JoinOptions other = elastic();
  SUBCASE("another model") {
    other.tensors = {{"w", {7}}};
    join_as(cluster, 2, 3, other);
  }
  SUBCASE("another number of ranks") {
    other.ranks = 3;
    join_as(cluster, 2, 3, other);
  }
  SUBCASE("another idea of membership") {
    other.config.membership.on_worker_loss = OnLoss::kWait;
    join_as(cluster, 2, 3, other);
  }
  SUBCASE("a rank that is taken") {
    other.node = 1;
    other.nodes = 2;
    cluster.join(2, other);
  }
  SUBCASE("a worker that has a part already") {
    other.node = 2;
    other.nodes = 3;
    cluster.join(1, other);
  }
  CHECK(cluster.phase() == "running");
  CHECK(cluster.count<StopJob>() == 0);
  CHECK(cluster.count<ControlError>() == 1);
}

TEST_CASE("a worker that is stopped leaves between two rounds, and the job goes on") {
  Cluster cluster;
  running_pair(cluster);
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  CHECK(cluster.only<StopRequest>(worker_peer(1)));
  CHECK(cluster.count<StopRequest>() == 1);
  CHECK(cluster.count<DrainDone>() == 0);
  cluster.leave(1, LeaveKind::kStopped, 11);
  const auto stops = cluster.to<StopJob>(worker_peer(1));
  REQUIRE_FALSE(stops.empty());
  CHECK(stops.front().kind == StopKind::kStopped);
  CHECK(stops.front().round == Round(11));
  CHECK(cluster.count<DrainDone>() == 1);
  CHECK(required(cluster.only<StopJob>(worker_peer(0))).kind == StopKind::kRestart);
  cluster.sent.clear();
  join_as(cluster, 0, 2);
  cluster.all_ready();
  CHECK(cluster.phase() == "running");
  CHECK(welcome_of(cluster, 0).nodes == 1);
}

TEST_CASE("if too few would be left the job stops cleanly") {
  Cluster cluster;
  running_pair(cluster, elastic(2));
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  CHECK(cluster.count<StopRequest>() == 2);
  cluster.leave(1, LeaveKind::kStopped, 11);
  CHECK(cluster.phase() == "stopping");
  cluster.all_done(11);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().record.members.empty());
}

TEST_CASE("a job below its least number of nodes waits for more") {
  Cluster cluster;
  running_pair(cluster, elastic(2));
  cluster.leave(1, LeaveKind::kFailed, 10, "trainer died");
  join_as(cluster, 0, 2, elastic(2));
  cluster.pass(30'000, 2);
  CHECK(cluster.phase() == "gathering");
  CHECK(contains(cluster.job().waiting_for, "at least 2"));
  cluster.worker(4);
  join_as(cluster, 4, 5, elastic(2));
  CHECK(cluster.phase() == "opening");
  CHECK(cluster.open().nodes == 2);
}

TEST_CASE("trainers that stop end the job for all, as elsewhere") {
  Cluster cluster;
  running_pair(cluster);
  cluster.leave(0, LeaveKind::kStopped, 11);
  CHECK(cluster.phase() == "stopping");
  CHECK(cluster.only<StopJob>(worker_peer(1))->kind == StopKind::kStopped);
}

TEST_CASE("a coordinator that was restarted waits for the nodes of the last view, but not for ever") {
  Cluster before;
  running_pair(before);
  Cluster cluster(2, before.records(), 8);
  cluster.everybody(2);
  join_as(cluster, 1, 2);
  CHECK(cluster.phase() == "gathering");
  SUBCASE("all come") {
    join_as(cluster, 0, 2);
    CHECK(cluster.phase() == "opening");
    CHECK(cluster.open().nodes == 2);
  }
  SUBCASE("one does not") {
    cluster.pass(6000, 2);
    CHECK(cluster.phase() == "opening");
    CHECK(cluster.open().nodes == 1);
  }
}

TEST_CASE("where nodes that change take a job back to a snapshot, who joins waits for a new one") {
  Cluster cluster;
  JoinOptions options = elastic();
  options.config.mode = Mode::kSsp;
  cluster.everybody(2);
  cluster.run(2, options);
  cluster.worker(2);
  join_as(cluster, 2, 3, options);
  CHECK(cluster.phase() == "running");
  check_error(cluster, worker_peer(2), ErrorCode::kUnavailable, {"after its next snapshot"});
  for (std::uint64_t version = 10; version < 40; version += 10) cluster.pass(1000, 3, {}, version);
  const auto snapshot = only_one(cluster.to<SnapshotAt>(server_peer(0)));
  join_as(cluster, 2, 3, options);
  CHECK(cluster.phase() == "running");
  cluster.all_done(snapshot.round.value);
  join_as(cluster, 2, 3, options);
  CHECK(cluster.phase() == "gathering");
  for (std::uint32_t w = 0; w < 2; ++w) join_as(cluster, w, 2, options);
  cluster.all_ready();
  CHECK(cluster.phase() == "running");
  CHECK(cluster.open().nodes == 3);
  CHECK(cluster.open().resume_round == snapshot.round);
}

TEST_CASE("pushes of other nodes are not summed again") {
  // Server 1 is lost, and what it had since the snapshot of round 5 must be pushed again, by the same nodes.
  const auto start = [](std::vector<std::uint32_t> pushed_by) {
    Cluster cluster;
    JoinOptions options = elastic();
    options.redo_capacity = 64;
    running_pair(cluster, options);
    cluster.say(server_peer(0), SnapshotDone{cluster.open().job, cluster.open().view, Round(5), true, 1, ""});
    cluster.say(server_peer(1), SnapshotDone{cluster.open().job, cluster.open().view, Round(5), true, 1, ""});
    ServerHello again = cluster.hello_of(1);
    again.incarnation = 99;
    again.stored = {StoredJob{cluster.open().job, "mnist", 0, {Round(5)}}};
    cluster.pass(kTimeoutMs + 2000, 2, {server_peer(1)}, 8);
    cluster.say(server_peer(1), again);
    options.redo_job = cluster.open().job;
    options.redo_first = 4;
    options.redo_last = 10;
    options.redo_nodes = std::move(pushed_by);
    cluster.sent.clear();
    for (std::uint32_t w = 0; w < 2; ++w) join_as(cluster, w, 2, options);
    REQUIRE(cluster.phase() == "opening");
    cluster.all_ready();
    return welcome_of(cluster, 0);
  };
  const JobWelcome same = start({0, 1});
  CHECK(same.resume_round == Round(10));
  CHECK(same.redo_after.size() == 2);
  const JobWelcome others = start({0, 2});
  CHECK(others.resume_round == Round(5));
  CHECK(others.redo_after.empty());
}

TEST_CASE("what nodes pushed before a view of others is not summed again, and one that never began is none") {
  // Node 2 joins. It is lost when that view runs, or while it opens; server 1 is, too.
  const auto start = [](bool ran) {
    Cluster cluster;
    JoinOptions options = elastic();
    options.redo_capacity = 64;
    running_pair(cluster, options);
    for (std::uint16_t i = 0; i < 2; ++i) {
      cluster.say(server_peer(i), SnapshotDone{cluster.open().job, cluster.open().view, Round(5), true, 1, ""});
    }
    cluster.worker(2);
    join_as(cluster, 2, 3, options);
    for (std::uint32_t w = 0; w < 2; ++w) join_as(cluster, w, 2, options);
    REQUIRE(cluster.open().nodes == 3);
    if (ran) cluster.all_ready();
    ServerHello again = cluster.hello_of(1);
    again.incarnation = 99;
    again.stored = {StoredJob{cluster.open().job, "mnist", 0, {Round(5)}}};
    cluster.pass(kTimeoutMs + 2000, 2, {server_peer(1), worker_peer(2)}, 8);
    cluster.say(server_peer(1), again);
    options.redo_job = cluster.open().job;
    options.redo_first = 4;
    options.redo_last = 10;
    cluster.sent.clear();
    for (std::uint32_t w = 0; w < 2; ++w) join_as(cluster, w, 2, options);
    REQUIRE(cluster.phase() == "opening");
    cluster.all_ready();
    return welcome_of(cluster, 0);
  };
  const JobWelcome opened = start(false);
  CHECK(opened.members == members_hash({0, 1}));
  CHECK(opened.resume_round == Round(10));
  const JobWelcome ran = start(true);
  CHECK(ran.members != opened.members);
  CHECK(ran.resume_round == Round(5));
  CHECK(ran.redo_after.empty());
}

TEST_CASE("a chunk that the nodes before had brought further is not summed again by others") {
  // Servers were at rounds 10 and 11 when node 2 joined, and the view began at 10: of round 11 some chunks are of two
  // nodes, until all servers are lost. Then server 1 is lost.
  const auto start = [](std::uint64_t snapshot, bool all_lost) {
    Cluster cluster;
    JoinOptions options = elastic();
    options.redo_capacity = 64;
    running_pair(cluster, options);
    const auto snapshot_of = [&](std::uint64_t round) {
      for (std::uint16_t i = 0; i < 2; ++i) {
        cluster.say(server_peer(i), SnapshotDone{cluster.open().job, cluster.open().view, Round(round), true, 1, ""});
      }
    };
    snapshot_of(10);
    cluster.worker(2);
    join_as(cluster, 2, 3, options);
    for (std::uint32_t w = 0; w < 2; ++w) join_as(cluster, w, 2, options);
    REQUIRE(cluster.open().nodes == 3);
    REQUIRE(cluster.open().kept);
    cluster.all_ready();
    const JobWelcome welcome = welcome_of(cluster, 2);
    CHECK(welcome.resume_round == Round(10));
    if (snapshot != 10) snapshot_of(snapshot);
    const auto comes_again = [&](std::uint16_t i, std::uint64_t incarnation) {
      ServerHello again = cluster.hello_of(i);
      again.incarnation = incarnation;
      again.stored = {StoredJob{cluster.open().job, "mnist", 0, {Round(10), Round(snapshot)}}};
      cluster.say(server_peer(i), again);
    };
    const auto opens = [&] {
      cluster.sent.clear();
      for (std::uint32_t w = 0; w < 3; ++w) {
        options.node = w;
        options.nodes = 3;
        JoinJob join = cluster.join_of(options);
        join.redo_members = welcome.members;
        cluster.say(worker_peer(w), join);
      }
      REQUIRE(cluster.phase() == "opening");
      cluster.all_ready();
      return welcome_of(cluster, 0).resume_round;
    };
    if (all_lost) {
      cluster.pass(kTimeoutMs + 2000, 3, {server_peer(0), server_peer(1)}, 8);
      for (std::uint16_t i = 0; i < 2; ++i) comes_again(i, 90);
      CHECK(opens() == Round(10));
    }
    cluster.keep(0, 14, 15);
    cluster.pass(kTimeoutMs + 2000, 3, {server_peer(1)}, 8);
    comes_again(1, 99);
    options.redo_job = cluster.open().job;
    options.redo_first = 11;
    options.redo_last = 15;
    return opens();
  };
  CHECK(start(10, false) == Round(10));
  CHECK(start(11, false) == Round(14));
  CHECK(start(10, true) == Round(14));
}

}  // namespace tributary::coordinator_members_test

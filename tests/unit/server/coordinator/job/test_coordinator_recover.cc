// Where the next view of a job begins after a loss.
#include <doctest/doctest.h>

#include "common/wire/redo_plan.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/two_servers.h"

namespace tributary::coordinator_recover_test {

using namespace testing;

namespace {

// With a snapshot of round 40.
struct RunningCluster : TwoServers {
  RunningCluster() {
    everybody(2);
    run(2, keeping());
    for (std::uint16_t i = 0; i < 2; ++i) {
      core.on_message(server_peer(i), SnapshotDone{open().job, open().view, Round(40), true, 1, {}}, now);
    }
    // Named by nobody, but as durable as any: the next view finds it.
    sent.clear();
  }
  // Node w comes back with its pushes of the rounds from first to last.
  void rejoin(std::uint32_t w, std::uint64_t first, std::uint64_t last) {
    JoinOptions options = keeping();
    options.node = w;
    options.nodes = 2;
    options.redo_job = open().job;
    options.redo_first = first;
    options.redo_last = last;
    join(w, options);
  }
  struct Pushes {
    std::uint64_t first, last;
  };
  void rejoin(Pushes of_node_0, Pushes of_node_1) {
    rejoin(0, of_node_0.first, of_node_0.last);
    rejoin(1, of_node_1.first, of_node_1.last);
  }
};

// The view begins at `round`; nodes push again what comes after the servers' versions.
void check_begin(const JobWelcome& welcome, std::uint64_t round, std::uint64_t server_0, std::uint64_t server_1) {
  CHECK(welcome.resume_round == Round(round));
  CHECK(welcome.redo_after == std::vector<Version>{Version(server_0), Version(server_1)});
}

}  // namespace

TEST_CASE("a lost node costs nothing: servers go on with what they have, at the round of the slowest chunk") {
  RunningCluster cluster;
  cluster.keep({52, 53}, {53, 53});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  CHECK(cluster.phase() == "idle");
  cluster.rejoin({41, 53}, {1, 0});  // on another machine: it has nothing
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto open = required(cluster.opened(i));
    CHECK(open.kept);
    CHECK(open.view == ViewId(2));
  }
  cluster.sent.clear();
  cluster.all_open();
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto welcome = required(cluster.only<JobWelcome>(worker_peer(w)));
    CHECK(welcome.resume);
    CHECK(welcome.resume_round == Round(52));
    CHECK(welcome.redo);
    CHECK(welcome.redo_after == std::vector<Version>{Version(52), Version(52)});
  }
}

TEST_CASE("nodes are asked to stop after the round that servers have a part of already, or when they make none") {
  for (const bool server_goes : {true, false}) {
    for (const bool whole : {true, false}) {
      for (const bool complete : {true, false}) {
        CAPTURE(server_goes);
        CAPTURE(whole);
        CAPTURE(complete);
        RunningCluster cluster;
        cluster.keep(0, 52, whole ? 52 : 53);
        cluster.keep(1, whole ? 52 : 53, whole ? 52 : 53);
        cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
        cluster.rejoin({41, 53}, {1, 0});
        cluster.all_open();
        cluster.sent.clear();
        if (server_goes) cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
        if (!server_goes) cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
        CHECK(cluster.count<StopRequest>() == (whole ? 2 : 0));
        if (whole) continue;
        cluster.pass(9000, 2, {}, 52);
        CHECK(cluster.count<StopRequest>() == 0);
        if (complete) cluster.pass(1000, 2, {}, 53);
        if (!complete) cluster.pass(3000, 2, {}, 52);
        for (const std::uint32_t w : {0u, 1u}) CHECK(cluster.to<StopRequest>(worker_peer(w)).size() == 1);
      }
    }
  }
}

TEST_CASE("what servers keep before the first snapshot is not given up for another configuration") {
  TwoServers cluster;
  cluster.everybody(2);
  cluster.run(2, keeping());
  const JobId job = cluster.open().job;
  cluster.keep({52, 53}, {53, 53});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.sent.clear();
  JoinOptions other = keeping();
  other.nodes = 2;
  other.config.optimizer.lr = 0.5;
  cluster.join(0, other);
  check_error(cluster, worker_peer(0), ErrorCode::kConfigMismatch,
              {"what is kept of it goes on with the settings that it began with"});
  for (const std::uint32_t node : {0u, 1u}) {
    JoinOptions same = keeping();
    same.node = node;
    same.nodes = 2;
    cluster.join(node, same);
  }
  REQUIRE(cluster.opened(0));
  CHECK(cluster.opened(0)->job == job);
  CHECK(cluster.opened(0)->kept);
  CHECK(cluster.opened(1)->kept);
}

TEST_CASE("what servers keep between views becomes a snapshot before one of them goes") {
  for (const bool whole_cluster : {false, true}) {
    CAPTURE(whole_cluster);
    RunningCluster cluster;
    cluster.answers_kept = false;
    cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
    cluster.rejoin(0, 41, 52);
    cluster.sent.clear();
    const auto going = [&] {
      if (whole_cluster) cluster.core.drain(cluster.now);
      if (!whole_cluster) cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
    };
    const auto may_go = [&] {
      return whole_cluster ? cluster.core.idle() : cluster.only<DrainDone>(server_peer(1)).has_value();
    };
    const JobId job = cluster.open().job;
    const ViewId view = cluster.open().view;
    going();
    cluster.say(server_peer(0), ShardKept{job, view, true, Version(52), Version(52)});
    CHECK_FALSE(may_go());  // server 1 has not said what it keeps
    CHECK(cluster.count<StopJob>() == 0);
    cluster.say(server_peer(1), ShardKept{job, view, true, Version(52), Version(52)});
    CHECK_FALSE(may_go());
    for (std::uint16_t i = 0; i < 2; ++i) {
      const auto stop = required(cluster.only<StopJob>(server_peer(i)));
      CHECK(stop.kind == StopKind::kStopped);
      CHECK(stop.round == Round(52));
      CHECK(stop.view == view);
      cluster.say(server_peer(i), SnapshotDone{job, view, Round(52), true, 1, {}});
    }
    CHECK(may_go());
    CHECK(cluster.core.jobs()[0].record.committed == Round(52));
    CHECK(cluster.core.jobs()[0].not_saved.empty());
    CHECK(cluster.only<SnapshotCommit>(server_peer(0)));
    CHECK(cluster.errors.empty());
    if (whole_cluster) continue;
    // It comes back, those who waited come again, and the job goes on.
    cluster.server_comes_back(1, Round(52));
    cluster.sent.clear();
    cluster.rejoin({41, 52}, {41, 52});
    const auto open = required(cluster.opened(0));
    CHECK(open.resume_round == Round(52));
  }
}

TEST_CASE("what servers keep becomes a snapshot of the view they had it in, though the next one was being recorded") {
  RunningCluster cluster;
  cluster.keep({52, 52}, {52, 52});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  const ViewId view = cluster.open().view;
  cluster.disk_stands = true;
  cluster.rejoin({41, 52}, {41, 52});
  cluster.sent.clear();
  cluster.core.drain(cluster.now);
  CHECK(cluster.count<StopJob>() == 0);
  CHECK_FALSE(cluster.core.idle());
  cluster.disk_goes_on();
  CHECK(cluster.count<OpenJob>() == 0);
  const auto stop = required(cluster.only<StopJob>(server_peer(0)));
  CHECK(stop.kind == StopKind::kStopped);
  CHECK(stop.view == view);
  for (std::uint16_t i = 0; i < 2; ++i) {
    cluster.say(server_peer(i), SnapshotDone{stop.job, view, Round(52), true, 1, {}});
  }
  CHECK(cluster.core.idle());
  CHECK(cluster.registry.at(stop.job.value).committed == Round(52));
}

TEST_CASE("a view opens though servers repeat what they keep while its record is being saved") {
  RunningCluster cluster;
  cluster.keep({52, 52}, {52, 52});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.disk_stands = true;
  cluster.rejoin({41, 52}, {41, 52});
  cluster.sent.clear();
  cluster.pass(3 * CoordinatedJob::kAskAgainMs, 2);
  CHECK(cluster.to<StopJob>(server_peer(0)).size() >= 2);  // asked again
  REQUIRE(cluster.orders.size() == 1);
  cluster.write_one();
  CHECK(cluster.orders.empty());
  CHECK(cluster.count<OpenJob>() == 2);
}

TEST_CASE("a server that goes as a view ends waits until all have said what they keep") {
  RunningCluster cluster;
  cluster.answers_kept = false;
  cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
  CHECK(cluster.only<StopRequest>(worker_peer(0)));
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");  // before it has made its round
  CHECK_FALSE(cluster.only<DrainDone>(server_peer(1)));
  for (std::uint16_t i = 0; i < 2; ++i) {
    cluster.say(server_peer(i), ShardKept{cluster.open().job, cluster.open().view, true, Version(52), Version(52)});
  }
  CHECK_FALSE(cluster.only<DrainDone>(server_peer(1)));
  cluster.all_done(52);
  CHECK(cluster.only<DrainDone>(server_peer(1)));
  CHECK(cluster.core.jobs()[0].record.committed == Round(52));
}

TEST_CASE("no view opens with a server that was told to stop, also when it may go") {
  FullCluster cluster({.workers = 1});
  cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
  CHECK(cluster.only<DrainDone>(server_peer(1)));
  cluster.join(0, {});
  cluster.pass(3000, 1);
  CHECK(cluster.count<OpenJob>() == 0);
  CHECK(cluster.job().waiting_for == "server 1, which is being stopped");
  cluster.server(1);  // it says hello again
  CHECK(cluster.count<OpenJob>() == 0);
  ServerHello hello = cluster.hello_of(1);
  hello.incarnation = 501;
  cluster.now += kTimeoutMs / 4;
  cluster.beat_server(0);
  cluster.beat_worker(0);
  cluster.say(PeerId(1501), hello);
  cluster.now += kTimeoutMs / 4;
  cluster.say(PeerId(1501), hello);
  CHECK(cluster.count<OpenJob>() == 2);
}

TEST_CASE("what servers keep and cannot become a snapshot is said to be lost, once, before they go") {
  RunningCluster cluster;
  std::string why;
  SUBCASE("some chunks are a round further") {
    cluster.keep({52, 52}, {52, 53});
    why = "server 1 has some chunks of round 53 already";
  }
  SUBCASE("a server has nothing") {
    cluster.keep(0, 52, 52);
    why = "server 1 has nothing of it in memory";
  }
  SUBCASE("a disk is full") {
    cluster.keep({52, 52}, {52, 52});
    why = "server 1: disk full";
  }
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.core.drain(cluster.now);
  if (!cluster.core.idle()) {
    cluster.done(0, 52);
    cluster.done(1, 52, false);
  }
  for (int tick = 0; tick < 3; ++tick) {
    cluster.core.drain(cluster.now);
    cluster.tick(cluster.now);
    cluster.say_what_is_kept();
  }
  CHECK(cluster.core.idle());
  CHECK(contains(cluster.core.jobs()[0].not_saved, why));
  REQUIRE(cluster.errors.size() == 1);
  CHECK(cluster.errors[0].find("the state of job 'mnist' at round 52 is not saved") == 0);
  CHECK(contains(cluster.errors[0], why));
}

TEST_CASE("a server that is still being brought up to the others hides no loss of theirs") {
  RunningCluster cluster;
  cluster.keep(0, 52, 52);
  cluster.server_comes_back(1);
  cluster.rejoin({41, 52}, {41, 52});
  cluster.all_open();
  const auto keep = [&](std::uint16_t server, std::uint64_t least, std::uint64_t most) {
    cluster.say(cluster.peers[server],
                ShardKept{cluster.open().job, cluster.open().view, true, Version(least), Version(most)});
  };
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  keep(0, 52, 52);
  keep(1, 40, 52);
  cluster.core.drain(cluster.now);
  REQUIRE(cluster.errors.size() == 1);
  CHECK(cluster.errors[0].find("the state of job 'mnist' at round 52 is not saved") == 0);
  CHECK(contains(cluster.errors[0], "server 1 was still being brought up to it, from round 40"));
}

TEST_CASE("nothing is to be saved of what servers keep at the round of the snapshot") {
  TwoServers cluster;
  cluster.everybody(2);
  cluster.run(2, keeping());
  cluster.keep({0, 1}, {0, 0});
  cluster.leave(1, LeaveKind::kFailed, 0, "rank 3 died");
  cluster.sent.clear();
  cluster.core.drain(cluster.now);
  CHECK(cluster.core.idle());
  CHECK(cluster.count<StopJob>() == 0);
  CHECK(cluster.core.jobs()[0].not_saved.empty());
}

TEST_CASE("what servers keep without what nodes have yet to say becomes no snapshot") {
  TwoServers cluster;
  cluster.everybody(2);
  JoinOptions options = keeping();
  options.config.push = EncodingId::kInt8;
  cluster.run(2, options);
  cluster.keep({52, 52}, {52, 52});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.core.drain(cluster.now);
  CHECK(cluster.core.idle());
  CHECK(contains(cluster.core.jobs()[0].not_saved, "(push = \"int8\") is in their memory alone"));
}

TEST_CASE("servers hear that what they keep is wanted as long as nodes wait, and are asked until they have said") {
  RunningCluster cluster;
  cluster.answers_kept = false;
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  const auto asked = [&](std::uint16_t server) { return cluster.to<StopJob>(server_peer(server)).size(); };
  const auto passes = [&] {
    cluster.sent.clear();
    cluster.pass(CoordinatedJob::kAskAgainMs + 1000, 2);
    return std::pair(asked(0) != 0, asked(1) != 0);
  };
  CHECK(passes() == std::pair(true, true));  // neither has said anything
  cluster.say(server_peer(0), ShardKept{cluster.open().job, cluster.open().view, true, Version(52), Version(53)});
  CHECK(passes() == std::pair(false, true));
  cluster.say(server_peer(1), ShardKept{cluster.open().job, cluster.open().view, true, Version(53), Version(53)});
  CHECK(passes() == std::pair(false, false));  // nobody waits
  cluster.rejoin(0, 41, 53);
  CHECK(passes() == std::pair(true, true));
}

TEST_CASE("a server whose connection was renewed hears again which snapshot is committed") {
  RunningCluster cluster;
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.rejoin({1, 0}, {1, 0});
  cluster.all_open();
  REQUIRE(cluster.phase() == "running");
  cluster.say(PeerId(7778), Heartbeat{server_incarnation(1), {}});
  const auto commit = required(cluster.only<SnapshotCommit>(PeerId(7778)));
  CHECK(commit.round == Round(40));
}

TEST_CASE("a lost server loads its snapshot, and the nodes push again what came after it") {
  RunningCluster cluster;
  cluster.keep(0, 53, 54);
  cluster.server_comes_back(1);
  CHECK(cluster.phase() == "idle");
  cluster.rejoin({41, 54}, {38, 53});
  CHECK(cluster.kept(0));
  CHECK_FALSE(cluster.kept(1));
  CHECK(cluster.opened(1)->resume);
  CHECK(cluster.opened(1)->resume_round == Round(40));
  cluster.sent.clear();
  check_begin(cluster.welcome(), 53, 53, 40);
}

TEST_CASE("all servers lost: the pushes that every node has decide how far it goes") {
  RunningCluster cluster;
  cluster.server_comes_back(0);
  cluster.server_comes_back(1);
  cluster.rejoin({41, 54}, {41, 52});
  CHECK_FALSE(cluster.kept(0));
  cluster.sent.clear();
  check_begin(cluster.welcome(1), 52, 40, 40);
}

TEST_CASE("no snapshot is named of rounds that are pushed again, and how fast they are made tells nothing") {
  RunningCluster cluster;
  cluster.server_comes_back(0);
  cluster.server_comes_back(1);
  cluster.rejoin({41, 54}, {38, 53});
  REQUIRE(cluster.welcome().resume_round == Round(53));
  std::uint64_t later = 0;
  SUBCASE("slowly") {
    later = 43;
  }
  SUBCASE("fast") {
    later = 53;
  }
  for (const std::uint64_t version : {std::uint64_t{41}, later}) {
    CHECK(cluster.count<SnapshotAt>() == 0);
    cluster.now += 1000;
    for (std::uint16_t i = 0; i < 2; ++i) {
      Heartbeat beat{500u + i, {}};
      beat.progress = {{cluster.open().job, cluster.open().view, Version(version), Version(version), false, false}};
      cluster.say(cluster.peers[i], beat);
    }
    cluster.tick(cluster.now);
  }
  CHECK(required(cluster.only<SnapshotAt>(cluster.peers[0])).round == Round(55));
}

TEST_CASE("a server that is beyond what every node can push again loads its snapshot, as the lost one does") {
  RunningCluster cluster;
  cluster.keep(0, 53, 54);
  cluster.server_comes_back(1);
  cluster.rejoin({41, 54}, {41, 52});
  CHECK_FALSE(cluster.kept(0));
  cluster.sent.clear();
  check_begin(cluster.welcome(), 52, 40, 40);
}

TEST_CASE("what cannot be had everywhere takes the job back to the snapshot") {
  RunningCluster cluster;
  cluster.keep(0, 53, 54);
  std::uint64_t first = 41, last = 53;
  SUBCASE("a node's pushes are gone") {
    first = 1;
    last = 0;
  }
  SUBCASE("a node's pushes do not go back to the snapshot") {
    first = 42;
  }
  cluster.server_comes_back(1);
  cluster.rejoin({41, 54}, {first, last});
  CHECK_FALSE(cluster.kept(0));
  CHECK(cluster.opened(0)->resume_round == Round(40));
  cluster.sent.clear();
  const JobWelcome welcome = cluster.welcome();
  CHECK(welcome.resume_round == Round(40));
  CHECK(welcome.redo_after.empty());
}

TEST_CASE("a server that has not let go of the last view yet is waited for, one that dies then is not") {
  RunningCluster cluster;
  cluster.answers_kept = false;
  cluster.leave(1, LeaveKind::kFailed, 52);
  cluster.rejoin({41, 53}, {41, 53});
  CHECK(cluster.phase() == "gathering");
  cluster.say(server_peer(0), ShardKept{cluster.open().job, cluster.open().view, true, Version(52), Version(52)});
  CHECK(cluster.phase() == "gathering");
  SUBCASE("answers") {
    cluster.say(server_peer(1), ShardKept{cluster.open().job, cluster.open().view, true, Version(53), Version(53)});
    CHECK(cluster.kept(1));
  }
  SUBCASE("dies") {
    cluster.server_comes_back(1);
    CHECK_FALSE(cluster.kept(1));
    CHECK(cluster.opened(0)->kept);
  }
  CHECK(cluster.phase() == "opening");
}

TEST_CASE("a server whose last words of a view were lost says in its next hello what it keeps") {
  RunningCluster cluster;
  cluster.answers_kept = false;
  cluster.leave(1, LeaveKind::kFailed, 52);
  cluster.rejoin({41, 53}, {41, 53});
  cluster.say(server_peer(0), ShardKept{cluster.open().job, cluster.open().view, true, Version(52), Version(52)});
  CHECK(cluster.phase() == "gathering");
  ServerHello hello = cluster.hello_of(1);
  hello.stored = {StoredJob{cluster.open().job, "mnist", 0, {Round(40)}}};
  hello.kept = {{cluster.open().job, Version(53), Version(53), false}};
  cluster.peers[1] = PeerId(5001);  // its connection broke
  cluster.say(cluster.peers[1], hello);
  CHECK(cluster.phase() == "opening");
  CHECK(cluster.kept(1));
}

TEST_CASE("a coordinator that is new learns from hellos what servers have") {
  RunningCluster before;
  Cluster cluster(2, before.records(), 8);
  for (std::uint32_t w = 0; w < 2; ++w) cluster.worker(w);
  for (std::uint16_t i = 0; i < 2; ++i) {
    ServerHello hello = cluster.hello_of(i);
    hello.stored = {StoredJob{before.open().job, "mnist", 0, {Round(40)}}};
    if (i == 0) hello.incarnation = 500;  // it was in the process that died
    if (i == 1) hello.kept = {{before.open().job, {}, {}, true}};
    cluster.say(server_peer(i), hello);
  }
  for (std::uint32_t w = 0; w < 2; ++w) {
    JoinOptions options = keeping();
    options.node = w;
    options.nodes = 2;
    options.redo_job = before.open().job;
    options.redo_first = 41;
    options.redo_last = 56;
    cluster.join(w, options);
  }
  CHECK(cluster.phase() == "gathering");
  cluster.say(server_peer(1), ShardKept{before.open().job, before.open().view, true, Version(55), Version(56)});
  CHECK(cluster.phase() == "opening");
  cluster.all_ready();
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK(welcome.resume_round == Round(55));
  CHECK(welcome.redo_after == std::vector<Version>{Version(40), Version(55)});
}

TEST_CASE("a node that says it keeps more rounds than it has room for is refused") {
  RunningCluster cluster;
  cluster.server_comes_back(1);
  cluster.sent.clear();
  cluster.rejoin(0, 1, ~0ull);
  check_error(cluster, worker_peer(0), ErrorCode::kMalformed, {"at most 16 rounds"});
  cluster.sent.clear();
  cluster.rejoin(0, 41, 57);
  CHECK(cluster.only<ControlError>(worker_peer(0)));
  cluster.sent.clear();
  cluster.rejoin(0, 41, 56);
  CHECK(cluster.sent.empty());
}

TEST_CASE("a server without chunks lacks no pushes") {
  FullCluster cluster({.workers = 1});
  JoinOptions options;
  options.tensors = {{"w", {100}}};
  cluster.run(1, options);
  cluster.keep(0, 5, 6);
  cluster.leave(0, LeaveKind::kFailed, 5, "rank 0 died");
  cluster.join(0, options);
  cluster.all_ready();
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK(welcome.resume_round == Round(5));
  CHECK(welcome.redo_after == std::vector<Version>{Version(5), Version(5)});
}

TEST_CASE("a server that had not yet caught up with the others goes on where it had come to, however often views end") {
  RunningCluster cluster;
  cluster.keep({44, 45}, {52, 53});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.rejoin({41, 53}, {41, 53});
  CHECK(cluster.kept(0));
  CHECK(cluster.kept(1));
  cluster.sent.clear();
  check_begin(cluster.welcome(), 52, 44, 52);
  // Chunks do not wait for each other while they are brought up.
  cluster.keep({46, 51}, {52, 53});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died again");
  cluster.sent.clear();
  cluster.rejoin({41, 53}, {41, 53});
  CHECK(cluster.kept(0));
  cluster.sent.clear();
  CHECK(cluster.welcome().redo_after == std::vector<Version>{Version(46), Version(52)});
}

TEST_CASE("a view that is cut just before the last round is pushed again costs no round that was complete") {
  RunningCluster cluster;
  cluster.keep(0, 53, 54);
  cluster.server_comes_back(1);
  cluster.rejoin({41, 54}, {41, 53});
  cluster.all_open();
  bool rings = true;
  SUBCASE("the nodes have what they pushed") {}
  SUBCASE("they have not") {
    rings = false;
  }
  cluster.keep(0, 53, 53);
  cluster.keeps[cluster.peers[1].value] = {Version(52), Version(52)};
  cluster.leave(1, LeaveKind::kFailed, 53, "rank 3 died");
  cluster.sent.clear();
  cluster.rejoin(0, 41, rings ? 54 : 52);
  cluster.rejoin(1, 41, rings ? 53 : 52);
  CHECK(cluster.kept(0));
  CHECK(cluster.kept(1));
  cluster.sent.clear();
  const JobWelcome welcome = cluster.welcome();
  CHECK(welcome.resume_round == Round(rings ? 53 : 52));
}

TEST_CASE("servers whose view ended before the nodes had pushed again what they lost need not load again") {
  RunningCluster cluster;
  cluster.keep({40, 40}, {40, 40});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.rejoin({41, 53}, {41, 53});
  CHECK(cluster.kept(0));
  cluster.sent.clear();
  check_begin(cluster.welcome(), 53, 40, 40);
}

TEST_CASE("what servers kept once is not counted on a second time") {
  RunningCluster cluster;
  cluster.keep({52, 53}, {53, 53});
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.rejoin({41, 53}, {41, 53});
  cluster.all_open();
  // It ends cleanly, but its last state could not be written, and is gone.
  cluster.keeps.clear();
  for (std::uint32_t w = 0; w < 2; ++w) cluster.leave(w, LeaveKind::kFinished, 56);
  cluster.done(0, 56, false);
  cluster.done(1, 56);
  CHECK(cluster.phase() == "idle");
  cluster.sent.clear();
  cluster.rejoin({41, 56}, {41, 56});
  CHECK_FALSE(cluster.kept(0));
  cluster.sent.clear();
  check_begin(cluster.welcome(), 56, 40, 40);
}

TEST_CASE("a job whose last state could not be written goes on from what its servers have in memory") {
  RunningCluster cluster;
  cluster.keep({60, 60}, {60, 60});
  LeaveKind kind = LeaveKind::kFinished;
  bool in_time = true;
  SUBCASE("it was through, and a disk is full") {}
  SUBCASE("it was stopped, and a disk is full") {
    kind = LeaveKind::kStopped;
  }
  SUBCASE("it was through, and a disk takes too long") {
    in_time = false;
  }
  for (std::uint32_t w = 0; w < 2; ++w) cluster.leave(w, kind, 60);
  cluster.done(0, 60);
  if (in_time) cluster.done(1, 60, false);
  for (int i = 0; i < 20 && !in_time; ++i) {
    CHECK(cluster.phase() == (i < 13 ? "stopping" : "idle"));
    cluster.now += 5'000;
    cluster.beat_server(0);
    cluster.say(server_peer(1), Heartbeat{server_incarnation(1), {}});  // it lives, and does not name the job any more
    for (std::uint32_t w = 0; w < 2; ++w) cluster.beat_worker(w);
    cluster.tick(cluster.now);
    cluster.say_what_is_kept();
  }
  CHECK(cluster.phase() == "idle");
  cluster.sent.clear();
  cluster.rejoin(0, 1, 0);  // trainers that were through took their rings with them
  cluster.rejoin(1, 1, 0);
  for (std::uint16_t i = 0; i < 2; ++i) {
    CHECK(cluster.kept(i));
  }
  cluster.sent.clear();
  check_begin(cluster.welcome(), 60, 60, 60);
}

TEST_CASE("servers go on with what they have only if every node knows what it has not said") {
  TwoServers cluster;
  cluster.everybody(2);
  JoinOptions options = keeping();
  options.config.push = EncodingId::kInt8;
  cluster.run(2, options);
  cluster.all_done(40);
  cluster.sent.clear();
  const auto rejoin = [&](std::uint32_t w, std::uint64_t residual_first, std::uint64_t residual_last,
                          std::vector<std::uint32_t> nodes = {}) {
    JoinOptions again = options;
    again.node = w;
    again.nodes = 2;
    again.redo_job = cluster.open().job;
    again.redo_first = 41;
    again.redo_last = residual_last;
    again.residual_first = residual_first;
    again.residual_last = residual_last;
    again.redo_nodes = std::move(nodes);
    cluster.join(w, again);
  };
  cluster.keep(0, 52, 53);
  SUBCASE("a node was lost, and all know") {
    cluster.keep(1, 53, 53);
    cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
    rejoin(0, 52, 53);
    rejoin(1, 51, 52);
    CHECK(cluster.kept(0));
    CHECK(cluster.welcome().resume_round == Round(52));
  }
  SUBCASE("a server was lost, and all know") {
    cluster.server_comes_back(1);
    rejoin(0, 52, 53);
    rejoin(1, 51, 52);
    CHECK(cluster.kept(0));
    check_begin(cluster.welcome(), 52, 52, 40);
  }
  SUBCASE("all know of the last round, but not of the one before it, which is all that a server lacks") {
    cluster.keep({53, 53}, {52, 53});
    cluster.leave(1, LeaveKind::kFailed, 53, "rank 3 died");
    rejoin(0, 53, 53);
    rejoin(1, 53, 53);
    CHECK(cluster.kept(1));
    check_begin(cluster.welcome(), 53, 53, 52);
  }
  SUBCASE("one does not: the snapshot has it") {
    cluster.keep(1, 53, 53);
    cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
    rejoin(0, 52, 53);
    SUBCASE("because it has nothing") {
      rejoin(1, 1, 0);
    }
    SUBCASE("because it knows of other rounds") {
      rejoin(1, 51, 51);
    }
    SUBCASE("because that was among other nodes") {
      rejoin(1, 52, 53, {0, 2});
    }
    CHECK_FALSE(cluster.kept(0));
    CHECK(cluster.opened(0)->resume_round == Round(40));
    CHECK(cluster.welcome().resume_round == Round(40));
  }
}

}  // namespace tributary::coordinator_recover_test

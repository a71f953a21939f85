// Where the next view of a job begins after a loss.
#include <doctest/doctest.h>

#include "common/redo_plan.h"
#include "tests/unit/coordinator_fixture.h"

namespace tributary {

using namespace testing;

namespace {

// Two servers and two nodes, with a snapshot of round 40.
struct Running : Cluster {
  Running() {
    everybody(2);
    run(2, keeping());
    for (std::uint16_t i = 0; i < 2; ++i) {
      core.on_message(server_peer(i), SnapshotDone{open().job, open().view, Round(40), true, 1, {}}, now);
    }
    // Named by nobody, but as durable as any: the next view finds it.
    sent.clear();
  }
  static JoinOptions keeping() {
    JoinOptions options;
    options.redo_capacity = 16;
    options.config.recovery.when_full = "wait";
    return options;
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
  // A new process of server `index`, with what its store has.
  void server_comes_back(std::uint16_t index) {
    ServerHello hello = hello_of(index);
    hello.incarnation = 500 + index;
    hello.stored = {StoredJob{open().job, "mnist", 0, {Round(40)}}};
    now += kTimeoutMs / 4;
    for (std::uint16_t i = 0; i < 2; ++i) {
      if (i != index) beat_server(i);
    }
    for (std::uint32_t w = 0; w < 2; ++w) beat_worker(w);
    peers[index] = PeerId(5000 + index);
    say(peers[index], hello);
  }
  void all_open() {
    for (const PeerId peer : peers) say(peer, ShardReady{open().job, open().view, true, {}, {}});
  }
  const OpenJob* opened(std::uint16_t index) {
    opens = to<OpenJob>(peers[index]);
    return opens.size() == 1 ? &opens[0] : nullptr;
  }
  std::vector<OpenJob> opens;
  PeerId peers[2] = {server_peer(0), server_peer(1)};
};

}  // namespace

TEST_CASE("a lost node costs nothing: servers go on with what they have, at the round of the slowest chunk") {
  Running cluster;
  cluster.keep(0, 52, 53);
  cluster.keep(1, 53, 53);
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  CHECK(cluster.phase() == "idle");
  cluster.rejoin(0, 41, 53);
  cluster.rejoin(1, 1, 0);  // on another machine: it has nothing
  for (std::uint16_t i = 0; i < 2; ++i) {
    const OpenJob* open = cluster.opened(i);
    REQUIRE(open);
    CHECK(open->kept);
    CHECK(open->view == ViewId(2));
  }
  cluster.sent.clear();
  cluster.all_open();
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto welcome = cluster.only<JobWelcome>(worker_peer(w));
    REQUIRE(welcome);
    CHECK(welcome->resume);
    CHECK(welcome->resume_round == Round(52));
    CHECK(welcome->redo);
    CHECK(welcome->redo_after == std::vector<Version>{Version(52), Version(52)});
  }
}

TEST_CASE("a lost server loads its snapshot, and the nodes push again what came after it") {
  Running cluster;
  cluster.keep(0, 53, 54);
  cluster.server_comes_back(1);
  CHECK(cluster.phase() == "idle");
  cluster.rejoin(0, 41, 54);
  cluster.rejoin(1, 38, 53);
  REQUIRE(cluster.opened(0));
  CHECK(cluster.opened(0)->kept);
  REQUIRE(cluster.opened(1));
  CHECK_FALSE(cluster.opened(1)->kept);
  CHECK(cluster.opened(1)->resume);
  CHECK(cluster.opened(1)->resume_round == Round(40));
  cluster.sent.clear();
  cluster.all_open();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(53));
  CHECK(welcome->redo_after == std::vector<Version>{Version(53), Version(40)});
}

TEST_CASE("all servers lost: the pushes that every node has decide how far it goes") {
  Running cluster;
  cluster.server_comes_back(0);
  cluster.server_comes_back(1);
  cluster.rejoin(0, 41, 54);
  cluster.rejoin(1, 41, 52);
  REQUIRE(cluster.opened(0));
  CHECK_FALSE(cluster.opened(0)->kept);
  cluster.sent.clear();
  cluster.all_open();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(1));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(52));
  CHECK(welcome->redo_after == std::vector<Version>{Version(40), Version(40)});
}

TEST_CASE("a server that is beyond what every node can push again loads its snapshot, as the lost one does") {
  Running cluster;
  cluster.keep(0, 53, 54);
  cluster.server_comes_back(1);
  cluster.rejoin(0, 41, 54);
  cluster.rejoin(1, 41, 52);
  REQUIRE(cluster.opened(0));
  CHECK_FALSE(cluster.opened(0)->kept);
  cluster.sent.clear();
  cluster.all_open();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(52));
  CHECK(welcome->redo_after == std::vector<Version>{Version(40), Version(40)});
}

TEST_CASE("what cannot be had everywhere takes the job back to the snapshot") {
  Running cluster;
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
  cluster.rejoin(0, 41, 54);
  cluster.rejoin(1, first, last);
  REQUIRE(cluster.opened(0));
  CHECK_FALSE(cluster.opened(0)->kept);
  CHECK(cluster.opened(0)->resume_round == Round(40));
  cluster.sent.clear();
  cluster.all_open();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(40));
  CHECK(welcome->redo_after.empty());
}

TEST_CASE("a server that has not let go of the last view yet is waited for, one that dies then is not") {
  Running cluster;
  cluster.answers_kept = false;
  cluster.leave(1, LeaveKind::kFailed, 52);
  cluster.rejoin(0, 41, 53);
  cluster.rejoin(1, 41, 53);
  CHECK(cluster.phase() == "gathering");
  cluster.say(server_peer(0), ShardKept{cluster.open().job, cluster.open().view, true, Version(52), Version(52)});
  CHECK(cluster.phase() == "gathering");
  SUBCASE("answers") {
    cluster.say(server_peer(1), ShardKept{cluster.open().job, cluster.open().view, true, Version(53), Version(53)});
    REQUIRE(cluster.opened(1));
    CHECK(cluster.opened(1)->kept);
  }
  SUBCASE("dies") {
    cluster.server_comes_back(1);
    REQUIRE(cluster.opened(1));
    CHECK_FALSE(cluster.opened(1)->kept);
    CHECK(cluster.opened(0)->kept);
  }
  CHECK(cluster.phase() == "opening");
}

TEST_CASE("a coordinator that is new learns from hellos what servers have") {
  Running before;
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
    JoinOptions options = Running::keeping();
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
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(55));
  CHECK(welcome->redo_after == std::vector<Version>{Version(40), Version(55)});
}

TEST_CASE("a node that says it keeps more rounds than it has room for is refused") {
  Running cluster;
  cluster.server_comes_back(1);
  cluster.sent.clear();
  cluster.rejoin(0, 1, ~0ull);
  const auto refused = cluster.only<ControlError>(worker_peer(0));
  REQUIRE(refused);
  CHECK(refused->code == ErrorCode::kMalformed);
  CHECK(refused->message.find("at most 16 rounds") != std::string::npos);
  cluster.sent.clear();
  cluster.rejoin(0, 41, 57);
  CHECK(cluster.only<ControlError>(worker_peer(0)));
  cluster.sent.clear();
  cluster.rejoin(0, 41, 56);
  CHECK(cluster.sent.empty());
}

TEST_CASE("snapshots are named half a ring ahead, and never beyond what nodes can reach without them") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, Running::keeping());
  cluster.pass(1000, 1);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nothing is trained yet
  std::uint64_t named = 0;
  SUBCASE("in time") {
    cluster.pass(1000, 1, {}, 3);
    named = 8;
  }
  SUBCASE("late") {
    cluster.pass(1000, 1, {}, 11);
    named = 13;
  }
  SUBCASE("the nodes wait already") {
    cluster.pass(1000, 1, {}, 16);
    named = 16;
  }
  const auto at = cluster.only<SnapshotAt>(server_peer(0));
  REQUIRE(at);
  CHECK(at->round == Round(named));
  cluster.done(0, named);
  // Nodes are told what they need not keep any more.
  REQUIRE(cluster.only<SnapshotCommit>(worker_peer(0)));
  CHECK(cluster.only<SnapshotCommit>(worker_peer(0))->round == Round(named));
  // The next one at once.
  REQUIRE(cluster.to<SnapshotAt>(server_peer(0)).size() == 2);
  CHECK(cluster.to<SnapshotAt>(server_peer(0))[1].round.value == named + 8);
}

TEST_CASE("a snapshot that shards had passed is named again where nobody can pass it, one that failed there later") {
  Cluster cluster(1);
  cluster.everybody(1);
  cluster.run(1, Running::keeping());
  cluster.pass(1000, 1, {}, 3);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  cluster.sent.clear();
  cluster.done(0, 8, false);
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
  cluster.run(1, Running::keeping());
  cluster.say(worker_peer(0), DrainRequest{worker_incarnation(0)});
  REQUIRE(cluster.only<StopRequest>(worker_peer(0)));
  cluster.pass(1000, 1, {}, 16);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == Round(16));
}

TEST_CASE("where nobody waits for snapshots they are named by pace, and no more often than writing them is cheap") {
  Cluster cluster(1);
  cluster.everybody(1);
  JoinOptions options = Running::keeping();
  options.config.recovery.when_full = "go_on";
  cluster.run(1, options);
  cluster.pass(2000, 1, {}, 7);
  CHECK(cluster.count<SnapshotAt>() == 0);  // less than half of what nodes keep
  cluster.pass(1000, 1, {}, 10);
  REQUIRE(cluster.only<SnapshotAt>(server_peer(0)));
  const std::uint64_t first = cluster.only<SnapshotAt>(server_peer(0))->round.value;
  CHECK(first > 10);
  cluster.sent.clear();
  // 100 MB: not again for 5 s.
  cluster.say(server_peer(0),
              SnapshotDone{cluster.open().job, cluster.open().view, Round(first), true, 100'000'000, {}});
  cluster.pass(4000, 1, {}, first + 12);
  CHECK(cluster.count<SnapshotAt>() == 0);
  cluster.pass(2000, 1, {}, first + 14);
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).size() == 1);
}

TEST_CASE("without a store nothing is kept, and no snapshot named") {
  Cluster cluster(1);
  cluster.everybody(1);
  ServerHello hello = cluster.hello_of(0);
  hello.store = false;
  cluster.say(server_peer(0), hello);
  JoinOptions options = Running::keeping();
  cluster.join(0, options);
  cluster.all_ready();
  REQUIRE(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK_FALSE(cluster.only<JobWelcome>(worker_peer(0))->redo);
  cluster.pass(3000, 1, {}, 100);
  CHECK(cluster.count<SnapshotAt>() == 0);
}

TEST_CASE("a server without chunks lacks no pushes") {
  Cluster cluster;
  cluster.everybody(1);
  JoinOptions options;
  options.tensors = {{"w", {100}}};
  cluster.run(1, options);
  cluster.keep(0, 5, 6);
  cluster.leave(0, LeaveKind::kFailed, 5, "rank 0 died");
  cluster.join(0, options);
  cluster.all_ready();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(5));
  CHECK(welcome->redo_after == std::vector<Version>{Version(5), Version(5)});
}

TEST_CASE("a server that had not yet caught up with the others when a second one was lost loads its snapshot again") {
  Running cluster;
  cluster.keep(0, 44, 45);
  cluster.keep(1, 52, 53);
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.rejoin(0, 41, 53);
  cluster.rejoin(1, 41, 53);
  REQUIRE(cluster.opened(0));
  CHECK_FALSE(cluster.opened(0)->kept);
  CHECK(cluster.opened(0)->resume_round == Round(40));
  REQUIRE(cluster.opened(1));
  CHECK(cluster.opened(1)->kept);
  cluster.sent.clear();
  cluster.all_open();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(52));
  CHECK(welcome->redo_after == std::vector<Version>{Version(40), Version(52)});
}

TEST_CASE("servers whose view ended before the nodes had pushed again what they lost begin that anew") {
  Running cluster;
  cluster.keep(0, 40, 40);
  cluster.keep(1, 40, 40);
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.rejoin(0, 41, 53);
  cluster.rejoin(1, 41, 53);
  REQUIRE(cluster.opened(0));
  CHECK_FALSE(cluster.opened(0)->kept);
  cluster.sent.clear();
  cluster.all_open();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(53));
  CHECK(welcome->redo_after == std::vector<Version>{Version(40), Version(40)});
}

TEST_CASE("what servers kept once is not counted on a second time") {
  Running cluster;
  cluster.keep(0, 52, 53);
  cluster.keep(1, 53, 53);
  cluster.leave(1, LeaveKind::kFailed, 52, "rank 3 died");
  cluster.rejoin(0, 41, 53);
  cluster.rejoin(1, 41, 53);
  cluster.all_open();
  // It ends in good order, but its last state could not be written.
  for (std::uint32_t w = 0; w < 2; ++w) cluster.leave(w, LeaveKind::kFinished, 56);
  cluster.done(0, 56, false);
  cluster.done(1, 56);
  CHECK(cluster.phase() == "idle");
  cluster.sent.clear();
  cluster.rejoin(0, 41, 56);
  cluster.rejoin(1, 41, 56);
  REQUIRE(cluster.opened(0));
  CHECK_FALSE(cluster.opened(0)->kept);
  cluster.sent.clear();
  cluster.all_open();
  const auto welcome = cluster.only<JobWelcome>(worker_peer(0));
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(56));
  CHECK(welcome->redo_after == std::vector<Version>{Version(40), Version(40)});
}

namespace {

// The same, with logs on the servers' disks.
struct Logging : Cluster {
  Logging() {
    everybody(2);
    run(2, logging());
    all_done(40);
    sent.clear();
  }
  static JoinOptions logging() {
    JoinOptions options;
    options.config.recovery.redo_log = "disk";
    return options;
  }
  void rejoin() {
    for (std::uint32_t w = 0; w < 2; ++w) {
      JoinOptions options = logging();
      options.node = w;
      options.nodes = 2;
      join(w, options);
    }
  }
  // A new process of server `index`, whose log has the rounds from first to last.
  void server_comes_back(std::uint16_t index, std::uint64_t first, std::uint64_t last) {
    ServerHello hello = hello_of(index);
    hello.incarnation = 500 + index;
    hello.stored = {StoredJob{open().job, "mnist", 0, {Round(40)}, {Round(first), Round(last)}}};
    now += kTimeoutMs / 4;
    for (std::uint16_t i = 0; i < 2; ++i) {
      if (i != index) beat_server(i);
    }
    for (std::uint32_t w = 0; w < 2; ++w) beat_worker(w);
    peers[index] = PeerId(5000 + index);
    say(peers[index], hello);
  }
  // What a server that lives keeps: in memory, and in its log.
  void has(std::uint16_t index, std::uint64_t min, std::uint64_t max, std::uint64_t log_last) {
    say(server_peer(index),
        ShardKept{open().job, open().view, true, Version(min), Version(max), {Round(41), Round(log_last)}});
  }
  std::optional<OpenJob> opened(std::uint16_t index) const { return only<OpenJob>(peers[index]); }
  std::optional<JobWelcome> welcome() {
    const OpenJob opening = open();
    for (const PeerId peer : peers) say(peer, ShardReady{opening.job, opening.view, true, {}, {}});
    return only<JobWelcome>(worker_peer(0));
  }
  PeerId peers[2] = {server_peer(0), server_peer(1)};
};

}  // namespace

TEST_CASE("servers and nodes lost at once: the shards take their logged steps again, up to what all of them have") {
  Logging cluster;
  cluster.server_comes_back(0, 41, 57);
  cluster.server_comes_back(1, 30, 55);
  cluster.rejoin();
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto open = cluster.opened(i);
    REQUIRE(open);
    CHECK_FALSE(open->kept);
    CHECK(open->resume);
    CHECK(open->resume_round == Round(40));
    CHECK(open->replay_to == Round(55));
  }
  const auto welcome = cluster.welcome();
  REQUIRE(welcome);
  CHECK(welcome->resume_round == Round(55));
  CHECK(welcome->redo_after.empty());
  CHECK_FALSE(welcome->redo);
}

TEST_CASE("a server that lived goes on with what it has, if the log of the lost one reaches as far") {
  Logging cluster;
  cluster.answers_kept = false;
  cluster.server_comes_back(1, 41, 55);
  std::uint64_t min = 55, max = 56;
  bool kept = true;
  std::uint64_t start = 55;
  SUBCASE("as far as the chunk that is behind") {}
  SUBCASE("a round less than its chunks are at") {
    min = 56;
  }
  SUBCASE("further than it") {
    min = 54;
    max = 55;
    start = 54;
  }
  SUBCASE("less far: it loads, too") {
    min = 57;
    max = 58;
    kept = false;
  }
  SUBCASE("and its log has less than the other's") {
    min = 57;
    max = 58;
    kept = false;
    start = 54;
  }
  cluster.has(0, min, max, start == 54 && !kept ? 54 : 58);
  cluster.rejoin();
  REQUIRE(cluster.opened(0));
  REQUIRE(cluster.opened(1));
  CHECK(cluster.opened(0)->kept == kept);
  CHECK(cluster.opened(0)->replay_to == (kept ? Round(0) : Round(start)));
  CHECK(cluster.opened(1)->replay_to == Round(start));
  CHECK(cluster.welcome()->resume_round == Round(start));
}

TEST_CASE("a log with a gap after the snapshot, or none, takes the job back to the snapshot") {
  Logging cluster;
  std::uint64_t first = 42, last = 60;
  SUBCASE("a gap") {}
  SUBCASE("none") {
    first = 1;
    last = 0;
  }
  SUBCASE("all of it is older") {
    first = 20;
    last = 39;
  }
  cluster.server_comes_back(0, 41, 60);
  cluster.server_comes_back(1, first, last);
  cluster.rejoin();
  for (std::uint16_t i = 0; i < 2; ++i) {
    REQUIRE(cluster.opened(i));
    CHECK(cluster.opened(i)->resume_round == Round(40));
    CHECK(cluster.opened(i)->replay_to == Round(0));
  }
  CHECK(cluster.welcome()->resume_round == Round(40));
}

TEST_CASE("with logs the first snapshot is named at once, and later ones before the log is full") {
  Cluster cluster;
  cluster.everybody(1);
  JoinOptions options = Logging::logging();
  options.config.snapshot = {.every_s = 0, .every_rounds = 0};
  options.config.recovery.when_full = "wait";
  cluster.run(1, options);
  cluster.pass(1000, 1, {}, 0);
  CHECK(cluster.count<SnapshotAt>() == 0);  // nothing has been trained yet
  cluster.pass(1000, 1, {}, 1);
  const auto first = cluster.only<SnapshotAt>(server_peer(0));
  REQUIRE(first);
  CHECK(first->round.value <= 8);
  cluster.sent.clear();
  cluster.all_done(first->round.value);
  const auto next = cluster.only<SnapshotAt>(server_peer(0));
  REQUIRE(next);
  CHECK(next->round.value > first->round.value + kMinRedoRounds / 2);
}

}  // namespace tributary

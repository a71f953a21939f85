// Where the next view of a job begins after a loss, if the servers log their steps on disk.
#include <doctest/doctest.h>

#include "common/redo_plan.h"
#include "tests/unit/two_servers.h"

namespace tributary {

using namespace testing;

namespace {

// With a snapshot of round 40, and logs on the servers' disks.
struct Logging : TwoServers {
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
  // With the rounds from first to last in its log.
  void server_comes_back(std::uint16_t index, std::uint64_t first, std::uint64_t last) {
    TwoServers::server_comes_back(index, {Round(first), Round(last)});
  }
  // What a server that lives keeps: in memory, and in its log.
  void has(std::uint16_t index, std::uint64_t min, std::uint64_t max, std::uint64_t log_last) {
    say(server_peer(index),
        ShardKept{open().job, open().view, true, Version(min), Version(max), {Round(41), Round(log_last)}});
  }
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
  const JobWelcome welcome = cluster.welcome();
  CHECK(welcome.resume_round == Round(55));
  CHECK(welcome.redo_after.empty());
  CHECK_FALSE(welcome.redo);
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
  CHECK(cluster.welcome().resume_round == Round(start));
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
  CHECK(cluster.welcome().resume_round == Round(40));
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

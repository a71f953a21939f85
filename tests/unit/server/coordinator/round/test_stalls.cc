// Why no round gets done: the one answer.
#include <doctest/doctest.h>

#include "server/coordinator/round/stall_watch.h"
#include "tests/unit/expect.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::testing::stalls_test {
namespace {

// Two nodes with two ranks each, two servers; round 10 was done at 100 s, as everybody says.
struct Still {
  Still() {
    watch.begin_view(Round(0), 99'000);
    for (std::uint64_t round = 1; round <= 10; ++round) watch.reached(Round(round), 99'000 + 100 * round);
    facts.peers = {{"node 0 (worker a)", 0}, {"node 1 (worker b)", 0}, {"server 0", 0}, {"server 1", 0}};
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      facts.ranks.push_back({rank, "node " + std::to_string(rank / 2), Round(11)});
    facts.servers = {{0, Version(10)}, {1, Version(10)}};
  }
  std::string why(std::uint64_t after_ms) {
    for (std::size_t i = 0; i < facts.peers.size(); ++i) {
      if (i != silent) facts.peers[i].heard_ms = 100'000 + after_ms;
    }
    const auto stall = watch.look(facts, 100'000 + after_ms);
    if (!stall) return "";
    CHECK(stall->ms == after_ms);
    return stall->why;
  }

  StallWatch watch;
  StallWatch::Facts facts;
  std::size_t silent = ~std::size_t{0};
};

}  // namespace

TEST_CASE("nothing is said before it is longer than usual") {
  Still still;
  CHECK(still.why(StallWatch::kQuietMs - 1).empty());
  CHECK_FALSE(still.why(StallWatch::kQuietMs).empty());
  // Rounds that take a minute.
  for (std::uint64_t round = 11; round <= 20; ++round)
    still.watch.reached(Round(round), 100'000 + 60'000 * (round - 10));
  CHECK_FALSE(still.watch.quiet(700'000 + 200'000));
  CHECK(still.watch.quiet(700'000 + 4 * 60'000));
  // A stall that is over makes nothing usual. Nor does what was reached before count as a round.
  still.watch.reached(Round(21), 2'000'000);
  still.watch.reached(Round(21), 2'100'000);
  CHECK(still.watch.quiet(2'000'000 + 4 * 60'000));
}

TEST_CASE("before it is known how long rounds take there is more patience, and a new view knows it from earlier ones") {
  StallWatch watch;
  watch.begin_view(Round(0), 0);
  CHECK_FALSE(watch.quiet(StallWatch::kFirstMs - 1));
  CHECK(watch.quiet(StallWatch::kFirstMs));
  watch.reached(Round(1), 50'000);  // the first one tells nothing
  CHECK_FALSE(watch.quiet(50'000 + StallWatch::kFirstMs - 1));
  watch.reached(Round(2), 53'000);
  CHECK_FALSE(watch.quiet(53'000 + 11'999));
  CHECK(watch.quiet(53'000 + 12'000));
  watch.begin_view(Round(2), 100'000);
  watch.reached(Round(2), 100'100);  // where it began
  CHECK(watch.quiet(100'000 + 12'000));
}

TEST_CASE("the answer names who is not heard, before anything else") {
  Still still;
  still.silent = 1;
  still.facts.peers[1].heard_ms = 98'000;
  still.facts.ranks[2].said = Round(10);
  CHECK(contains(still.why(6000), "node 1 (worker b) (8 s) has not been heard"));
  still.silent = 3;
  still.facts.peers[3].heard_ms = 98'000;
  CHECK(contains(still.why(6000), "server 1 (8 s) has not been heard"));
}

TEST_CASE("the answer names ranks that have not given their gradients, if others have") {
  Still still;
  still.facts.ranks[3].said = Round(10);
  CHECK(contains(still.why(6000), "rank 3 (node 1) has not given all gradients of round 11, the other 3 have"));
  still.facts.ranks[0].said = Round(9);
  CHECK(contains(still.why(6000),
                 "rank 0 (node 0), rank 3 (node 1) have not given all gradients of round 11, the other 2"));
  for (auto& rank : still.facts.ranks) rank.said = Round(10);
  CHECK(contains(still.why(6000), "no rank has given all gradients of round 11"));
}

TEST_CASE("the answer names a snapshot that nodes wait for, a server that is behind, and else the links") {
  Still still;
  CHECK(contains(still.why(6000), "all ranks have given their gradients of round 11, which have not all arrived"));
  still.facts.servers[0].version = Version(11);
  CHECK(contains(still.why(6000), "and server 1 has not done it"));
  still.facts.kept_most = 4;
  still.facts.durable = Round(6);
  still.facts.snapshot = Round(9);
  still.facts.snapshot_waits = {1};
  const std::string full = still.why(6000);
  CHECK(contains(full, "nodes keep no more pushes than 4 rounds"));
  CHECK(contains(full, "durable, round 6; server 1 has still to write the snapshot of round 9"));
  still.facts.durable = Round(7);
  CHECK(contains(still.why(6000), "server 1 has not done it"));
}

TEST_CASE("the coordinator tells a stall once, shows it while it lasts, and says when it is over") {
  TrainingCluster cluster(2, 1);
  NodePace paces[2];
  const auto beat = [&](std::uint64_t first, std::uint64_t second, std::uint64_t version) {
    for (std::uint32_t node = 0; node < 2; ++node) {
      paces[node].job = cluster.open().job;
      paces[node].view = cluster.open().view;
      paces[node].node = NodeRank(node);
      paces[node].said.assign(2, Round(node == 0 ? first : second));
      cluster.say(worker_peer(node), Heartbeat{worker_incarnation(node), {}, {paces[node]}});
    }
    JobProgress progress;
    progress.job = cluster.open().job;
    progress.view = cluster.open().view;
    progress.min_version = progress.max_version = Version(version);
    cluster.say(server_peer(0), Heartbeat{server_incarnation(0), {progress}, {}});
  };
  const auto told = [&](const std::string& text) {
    return std::ranges::count_if(cluster.logged, [&](const auto& line) { return contains(line, text); });
  };
  const auto pass = [&](std::uint64_t first, std::uint64_t second, std::uint64_t version, int seconds) {
    for (int i = 0; i < 10 * seconds; ++i) {
      beat(first, second, version);
      cluster.now += 100;
      cluster.tick(cluster.now);
    }
  };
  for (std::uint64_t round = 1; round <= 3; ++round) pass(round, round, round, 1);
  CHECK_FALSE(cluster.job().stall);
  pass(4, 3, 3, 9);
  REQUIRE(cluster.job().stall);
  CHECK_MESSAGE(contains(cluster.job().stall->why,
                         "rank 2 (node 1), rank 3 (node 1) have not given all gradients of round 4, the other 2 have"),
                cluster.job().stall->why);
  CHECK(told("has had no round for 5 s: rank 2 (node 1), rank 3 (node 1)") == 1);
  CHECK(told("has had no round") == 1);
  pass(4, 4, 4, 1);
  CHECK_FALSE(cluster.job().stall);
  CHECK(told("without a round") == 1);
}

}  // namespace tributary::testing::stalls_test

// CoordinatorCore: ranks without a state get the first rank's state of the round, or that of the rank that must give
// it.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/large_states.h"

namespace tributary::coordinator_giver_test {

using namespace testing;

namespace {

// The states that a node reports when it joins again.
struct Joins {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> held = {};  // round, local rank
  std::vector<std::uint32_t> living = {};
  bool of_this_job = true;
};

// A view of three nodes is lost at round 50, which servers have in memory, and begins again.
JobWelcome again(Cluster& cluster, const std::vector<Joins>& joins) {
  for (std::uint16_t i = 0; i < 2; ++i) cluster.keep(i, 50, 51);
  const JobId job = cluster.open().job;
  cluster.leave(0, LeaveKind::kFailed, 50, "its machine is gone");
  cluster.sent.clear();
  for (std::uint32_t w = 0; w < joins.size(); ++w) {
    JoinOptions options;
    options.nodes = static_cast<std::uint32_t>(joins.size());
    options.node = w;
    JoinJob join = cluster.join_of(options);
    join.held_job = joins[w].of_this_job ? job : JobId(job.value + 1);
    for (const auto& [round, rank] : joins[w].held) {
      join.held_rounds.emplace_back(round);
      join.held_ranks.push_back(rank);
    }
    join.living = joins[w].living;
    cluster.say(worker_peer(w), join);
  }
  cluster.all_ready();
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK(welcome.resume_round == Round(50));
  return welcome;
}

}  // namespace

TEST_CASE("in a fresh view the first rank gives") {
  FullCluster cluster({.workers = 2});
  join_all(cluster, {}, 2);
  CHECK(cluster.only<JobWelcome>(worker_peer(0))->giver == 0);
  CHECK(cluster.only<JobWelcome>(worker_peer(1))->giver == 0);
}

TEST_CASE("the giver is a rank that lived, else one that is held of just that round, else nobody") {
  TrainingCluster cluster(3);
  SUBCASE("the lowest that lived, whatever is held") {
    CHECK(again(cluster, {{{{50, 0}}}, {{}, {1}}, {{}, {0, 1}}}).giver == 3);
  }
  SUBCASE("one that is held") {
    CHECK(again(cluster, {{{{49, 0}}}, {{{49, 0}, {50, 1}}}, {{{50, 0}}}}).giver == 3);
  }
  SUBCASE("nobody") {
    CHECK(again(cluster, {{{{49, 0}}}, {}, {{{51, 0}}}}).giver == kNobody);
  }
  SUBCASE("what is of another job is nothing") {
    CHECK(again(cluster, {{{{50, 0}}, {0}, false}, {}, {}}).giver == kNobody);
  }
  SUBCASE("ranks that there are not are nobody") {
    CHECK(again(cluster, {{{{50, 7}}, {2, 0xffffffff}}, {}, {}}).giver == kNobody);
  }
}

TEST_CASE("where ranks gave for the round, the first whole state goes along, and nobody is to give one") {
  TrainingCluster cluster(3);
  give(cluster, 0, 50, StateHead{{}, false}.before(bytes_of("not whole")));
  give(cluster, 1, 50, bytes_of("whole"));
  give(cluster, 2, 50, bytes_of("whole, too"));
  const JobWelcome welcome = again(cluster, {{{}, {0}}, {}, {}});
  CHECK(welcome.first_state == bytes_of("whole"));
  CHECK(welcome.giver == kNobody);
}

TEST_CASE("a first state whose large part is not there is none") {
  TrainingCluster cluster(3);
  const LargeState large = large_state('a');
  give(cluster, 1, 50, large.state);
  SUBCASE("not there") {
    const JobWelcome welcome = again(cluster, {{{}, {1}}, {}, {}});
    CHECK(welcome.first_state.empty());
    CHECK(welcome.giver == 1);
    // Its own rank gets it all the same: its worker may be asked.
    CHECK(cluster.only<JobWelcome>(worker_peer(1))->rank_states.at(0) == large.state);
  }
  SUBCASE("there") {
    deliver(cluster, 1, large);
    CHECK(again(cluster, {{{}, {1}}, {}, {}}).first_state == large.state);
  }
}

TEST_CASE("what the giver gives goes to all nodes, once, and again to who missed it") {
  TrainingCluster cluster(3);
  again(cluster, {{}, {{}, {1}}, {}});
  cluster.sent.clear();
  give(cluster, 0, 50, bytes_of("not the giver"));
  give(cluster, 1, 50, bytes_of("the other rank"), 0);
  give(cluster, 1, 51, bytes_of("another round"), 1);
  CHECK(cluster.count<NodeRankState>() == 0);
  give(cluster, 1, 50, bytes_of("it"), 1);
  for (std::uint32_t w = 0; w < 3; ++w)
    CHECK(cluster.only<NodeRankState>(worker_peer(w))->kept.state == bytes_of("it"));
  give(cluster, 1, 50, bytes_of("something else"), 1);
  CHECK(cluster.count<NodeRankState>() == 3);

  cluster.sent.clear();
  SUBCASE("a worker that has another connection") {
    cluster.say(PeerId(7777), Heartbeat{worker_incarnation(2), {}});
    CHECK(cluster.only<JobWelcome>(PeerId(7777))->giver == 3);
    CHECK(cluster.only<NodeRankState>(PeerId(7777))->kept.state == bytes_of("it"));
  }
  SUBCASE("a welcome that was lost") {
    JoinOptions options;
    options.nodes = 3;
    options.node = 2;
    cluster.join(2, options);
    CHECK(cluster.only<JobWelcome>(worker_peer(2))->giver == 3);
    CHECK(cluster.only<NodeRankState>(worker_peer(2))->kept.state == bytes_of("it"));
  }
}

TEST_CASE("the large part of what the giver gave stays for those who lack it while the view lasts") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a');
  give(cluster, 0, 0, large.state);
  const WantPart piece{cluster.open().job, large.large, 0};
  cluster.say(worker_peer(1), piece);
  deliver(cluster, 0, large);
  cluster.sent.clear();
  cluster.stop_at(0, 40);
  CHECK(cluster.parts.parts.size() == 1);
  join_all(cluster, {}, 2);
  CHECK(cluster.parts.parts.empty());
}

}  // namespace tributary::coordinator_giver_test

// CoordinatorCore: ranks' values go to all nodes of the view, survive views, and end jobs that cannot continue.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_values_test {

using namespace testing;

namespace {

// Values of both ranks of node w.
void give(Cluster& cluster, std::uint32_t w, std::uint64_t round, std::uint32_t index, std::uint32_t view_of = 0) {
  SharedValues said{Round(round), index, false, {}};
  for (std::uint32_t rank = 2 * w; rank < 2 * w + 2; ++rank) said.values.push_back({rank, {std::byte(rank)}});
  cluster.say(worker_peer(w), RankValues{cluster.open().job, view_of == 0 ? cluster.open().view : ViewId(view_of), said,
                                         ErrorCode::kInternal, ""});
}

std::vector<RankValues> told(const Cluster& cluster, std::uint32_t w) {
  return cluster.to<RankValues>(worker_peer(w));
}

// Two nodes with two ranks each, that run.
struct Two : Cluster {
  Two() {
    everybody(2);
    run(2);
  }
  void again(std::uint64_t round) {
    for (std::uint16_t i = 0; i < 2; ++i) keep(i, round, round);
    leave(0, LeaveKind::kFailed, round, "a trainer died");
    run(2);
  }
};

}  // namespace

TEST_CASE("all nodes get the values of all ranks, and who asks again gets them at once") {
  Two cluster;
  give(cluster, 0, 0, 0);
  CHECK(cluster.count<RankValues>() == 0);
  give(cluster, 1, 0, 0);
  for (std::uint32_t w = 0; w < 2; ++w) {
    REQUIRE(told(cluster, w).size() == 1);
    CHECK(told(cluster, w)[0].shared.complete);
    CHECK(told(cluster, w)[0].shared.values.size() == 4);
  }
  give(cluster, 1, 0, 0);
  CHECK(told(cluster, 0).size() == 1);
  CHECK(told(cluster, 1).size() == 2);
}

TEST_CASE("answers are known in the next view, and what was open is not") {
  Two cluster;
  for (std::uint32_t w = 0; w < 2; ++w) give(cluster, w, 7, 0);
  give(cluster, 0, 7, 1);
  const ViewId before = cluster.open().view;
  cluster.again(7);
  REQUIRE(cluster.open().view > before);
  give(cluster, 1, 7, 0);
  REQUIRE(told(cluster, 1).size() == 1);
  CHECK(told(cluster, 1)[0].view == cluster.open().view);
  CHECK(told(cluster, 1)[0].shared.index == 0);
  give(cluster, 1, 7, 1);
  give(cluster, 0, 7, 1, before.value);  // of the view that is over
  CHECK(cluster.count<RankValues>() == 1);
  give(cluster, 0, 7, 1);
  CHECK(cluster.count<RankValues>() == 3);
}

TEST_CASE("another coordinator learns them from whoever knows them") {
  Two cluster;
  give(cluster, 0, 3, 0);
  SharedValues known{Round(3), 0, true, {}};
  for (std::uint32_t rank = 0; rank < 4; ++rank) known.values.push_back({rank, {std::byte(9)}});
  cluster.say(worker_peer(1), RankValues{cluster.open().job, cluster.open().view, known, {}, ""});
  REQUIRE(told(cluster, 0).size() == 1);
  CHECK(told(cluster, 0)[0].shared == known);
}

TEST_CASE("nobody speaks for ranks of others") {
  Two cluster;
  const RankValues said{cluster.open().job, cluster.open().view, {Round(0), 0, false, {{0, {}}}}, {}, ""};
  SUBCASE("of another node") {
    cluster.say(worker_peer(1), said);
    check_error(cluster, worker_peer(1), ErrorCode::kInvalidArgument, {"of rank 0", "its 2 ranks from 2 on"});
  }
  SUBCASE("without a part in the job") {
    cluster.worker(2);
    cluster.sent.clear();
    cluster.say(worker_peer(2), said);
    check_error(cluster, worker_peer(2), ErrorCode::kInvalidArgument, {"host2", "has no part in job 'mnist'"});
  }
  CHECK(cluster.phase() == "running");
  CHECK(cluster.count<RankValues>() == 0);
}

TEST_CASE("ranks that make different calls all hear so") {
  Two cluster;
  give(cluster, 0, 4, 0);
  give(cluster, 1, 4, 1);
  cluster.pass(JobValues::kPatienceMs - 1000, 2);
  CHECK(cluster.count<RankValues>() == 0);
  cluster.pass(2000, 2);
  for (std::uint32_t w = 0; w < 2; ++w) {
    REQUIRE(told(cluster, w).size() == 1);
    CHECK(told(cluster, w)[0].message ==
          "rank 0 is at value 0 after round 4, rank 2 at value 1 after round 4: all ranks make the same calls, in the "
          "same order");
  }
  cluster.pass(60'000, 2);
  CHECK(cluster.count<RankValues>() == 2);  // said once
}

TEST_CASE("a value that is given twice with other bytes ends the job for all ranks") {
  Two cluster;
  give(cluster, 0, 4, 0);
  cluster.say(
      worker_peer(0),
      RankValues{cluster.open().job, cluster.open().view, {Round(4), 0, false, {{1, {std::byte(77)}}}}, {}, ""});
  for (std::uint32_t w = 0; w < 2; ++w) {
    REQUIRE(told(cluster, w).size() == 1);
    CHECK(told(cluster, w)[0].message.find("rank 1 gave value 0 after round 4 a second time") == 0);
  }
}

TEST_CASE("ranks do not wait for values of a node that has finished") {
  Two cluster;
  cluster.leave(0, LeaveKind::kFinished, 9);
  give(cluster, 1, 9, 0);
  cluster.pass(JobValues::kPatienceMs - 1000, 2, {}, 9);
  CHECK(cluster.phase() == "running");
  cluster.pass(2000, 2, {}, 9);
  const auto stop = required(cluster.only<StopJob>(worker_peer(1)));
  CHECK(stop.kind == StopKind::kStopped);
  CHECK(stop.round == Round(9));
  CHECK(stop.reason ==
        "node 0 finished after round 9, and rank 2 waits for value 0 after round 9 of rank 0: all ranks make the same "
        "calls");
}

TEST_CASE("status says for whose values a job waits") {
  Two cluster;
  give(cluster, 0, 0, 2);
  cluster.pass(70'000, 2);
  REQUIRE(cluster.job().stall);
  CHECK(cluster.job().stall->why == "rank 0 waits for value 2 after round 0 of rank 2, rank 3");
}

}  // namespace tributary::coordinator_values_test

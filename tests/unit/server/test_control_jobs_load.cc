// ControlJobs: what a view begins with is loaded, and what is not wanted is dropped.
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {

TEST_CASE("stops, and decisions of other jobs, are heard while a job loads, and heartbeats say how far it is") {
  Server server;
  OpenJob other = server.open_message(2);
  other.job = JobId(8);
  JobConfig config;
  config.name = "other";
  config.gate.clip_norm = 1.0;
  other.job_json = to_canonical_json(config);
  server.jobs.on(other);
  server.jobs.lane_opened(JobId(8), ViewId(2), {});
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  CHECK(server.orders.loads[0].info.round == Round(5));
  server.jobs.on(RoundDecision{JobId(8), ViewId(2), Round(1), {}});
  CHECK(server.lane.said.back() == "decide");
  REQUIRE(server.orders.loads[0].chunk());
  CHECK(server.lane.said.back() == "restore");
  CHECK(server.jobs.progress().size() == 2);
  CHECK(server.jobs.progress()[0].loaded > 0);
  CHECK(server.jobs.progress()[1].loaded == 0);
  server.sent.clear();
  server.restart(3);
  const auto kept = only_one(server.take<ShardKept>());
  CHECK_FALSE(kept.any);  // to everybody it is what the store has
}

TEST_CASE("what was loaded, or is being, for a view that never began is not loaded again") {
  Server server;
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  const FakeOrders::Load load = server.orders.loads[0];
  SUBCASE("it is there when the view is over") {
    REQUIRE(load.chunk());
    load.done({});
    CHECK(server.lane.said.back() == "opened");
    server.restart(3);
    CHECK(server.lane.said.back() == "park");
    SUBCASE("the lane has said so") {
      server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
      server.jobs.on(server.resume_message(4));
    }
    SUBCASE("it has not") {
      server.jobs.on(server.resume_message(4));
      server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    }
  }
  SUBCASE("it is there before the next view opens") {
    server.restart(3);
    REQUIRE(load.chunk());
    load.done({});
    CHECK(server.lane.said.back() == "park");
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    server.jobs.on(server.resume_message(4));
  }
  SUBCASE("it is there after a third view has opened") {
    server.restart(3);
    server.jobs.on(server.resume_message(4));
    server.restart(4);
    server.jobs.on(server.resume_message(4));
    REQUIRE(load.chunk());
    CHECK(server.jobs.progress()[0].loaded > 0);
    load.done({});
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
  }
  const std::vector<std::string>& said = server.lane.said;
  REQUIRE(said.size() >= 2);
  CHECK(said[said.size() - 2] == "reopen");
  CHECK(said.back() == "opened");
  server.sent.clear();
  server.jobs.lane_opened(JobId(7), ViewId(4), {});
  const auto ready = only_one(server.take<ShardReady>());
  CHECK(ready.ok);
  CHECK(ready.view == ViewId(4));
  CHECK(server.orders.loads.size() == 1);
}

TEST_CASE("what a view that got no further than its snapshot was loaded with serves the next one, too") {
  Server server;
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  REQUIRE(server.orders.loads[0].chunk());
  server.orders.loads[0].done({});
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  server.restart(3);  // other servers were still loading
  std::uint64_t reached = 5;
  SUBCASE("no further") {}
  SUBCASE("further") {
    reached = 6;
  }
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(reached));
  const auto kept = only_one(server.take<ShardKept>());
  CHECK(kept.any);
  server.jobs.on(server.resume_message(4));
  CHECK(server.orders.loads.size() == (reached == 5 ? 1 : 2));
  CHECK(server.lane.said.back() == (reached == 5 ? "opened" : "open"));
}

TEST_CASE("what was loaded is of no use to a view that begins with something else") {
  Server server;
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  const FakeOrders::Load load = server.orders.loads[0];
  server.restart(3);
  OpenJob next = server.resume_message(4);
  std::size_t loads = 2;
  SUBCASE("another round") {
    next.resume_round = Round(6);
  }
  SUBCASE("other nodes") {
    next.nodes = 2;
  }
  SUBCASE("another configuration") {
    JobConfig config;
    config.name = "job";
    config.optimizer.lr = 0.75;
    next.job_json = to_canonical_json(config);
  }
  SUBCASE("no snapshot") {
    next.resume = false;
    loads = 1;
  }
  server.jobs.on(next);
  CHECK(server.orders.loads.size() == loads);
  CHECK_FALSE(load.chunk());  // nobody reads on
  server.lane.said.clear();
  load.done(fail(ErrorCode::kStopped, "nobody wants it"));
  CHECK(server.lane.said.empty());
}

TEST_CASE("a load that fails after its view is over fails the view that goes on with it, in the store's words") {
  Server server;
  server.jobs.on(server.resume_message(3));
  server.restart(3);
  server.jobs.on(server.resume_message(4));
  server.sent.clear();
  REQUIRE(server.orders.loads.size() == 1);
  server.orders.loads[0].done(fail(ErrorCode::kStore, "a block's checksum does not match"));
  const auto refused = only_one(server.take<ShardReady>());
  CHECK_FALSE(refused.ok);
  CHECK(refused.view == ViewId(4));
  CHECK(testing::contains(refused.message, "checksum"));
  server.jobs.on(server.resume_message(5));
  CHECK(server.orders.loads.size() == 2);
}

}  // namespace tributary::control_jobs_test

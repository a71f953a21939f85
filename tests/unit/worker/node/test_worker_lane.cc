#include <doctest/doctest.h>

#include <cstring>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"
#include "worker/reduce/redo_ring.h"

namespace tributary::worker_lane_test {

using namespace testing;

TEST_CASE("gradients of one rank and of several reach the servers and come back as parameters") {
  for (const std::uint32_t ranks : {1u, 3u}) {
    FakeServerLane server;
    LaneNode node;
    node.open({server.endpoint()}, ranks);
    node.start();
    for (std::uint64_t round = 1; round <= 5; ++round) {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) node.ready(rank, round, static_cast<float>(rank + 1));
      REQUIRE(node.reaches(round));
    }
    const float sum = static_cast<float>(ranks * (ranks + 1) / 2);
    CHECK(node.job->parameters()[0] == 1.0f - 5.0f * sum);
    CHECK(node.job->parameters()[4 * kLaneChunkElements] == 1.0f - 5.0f * sum);
    CHECK(node.failures.all().empty());
    CHECK(eventually([&] { return node.job->lane_stats(0).answers.value() == 6 * node.job->layout().chunks(); }));
    const std::uint64_t pulled = 6 * node.job->layout().flat_elements() * sizeof(float);
    CHECK(eventually([&] { return node.job->header().bytes_pulled.load() == pulled; }));
    CHECK((node.job->header().reduce_ns.load() > 0) == (ranks > 1));
    CHECK(node.memory_comes_back());
  }
}

TEST_CASE("what trainers write where the worker tells them its state is not believed by the worker") {
  FakeServerLane server;
  LaneNode node;
  node.open({server.endpoint()}, 1);
  node.start();
  // A lane counts its answers after it has published them.
  const LaneCounter& pulled = node.job->lane_stats(0).bytes_pulled;
  const std::uint64_t bytes = node.job->layout().flat_elements() * sizeof(float);
  CHECK(eventually([&] { return pulled.value() == bytes; }));
  const Version before = node.job->max_version();
  const std::uint64_t answers = node.job->answers();
  auto* const region = const_cast<std::byte*>(node.job->node_memory().bytes().data());
  std::memset(region, 0xff, node_parameters_offset(node.job->layout().chunks()));
  CHECK(node.job->min_version() == before);
  CHECK(node.job->max_version() == before);
  CHECK(node.job->answers() == answers);
  CHECK(node.job->state() == RegionState::kRunning);
  CHECK(pulled.value() == bytes);
  node.ready(0, 1, 1.0f);
  REQUIRE(node.reaches(1));
  CHECK(node.job->min_version() == Version(1));
  node.job->set_state(RegionState::kStopRequested);
  CHECK(node.job->header().state.load() == static_cast<std::uint32_t>(RegionState::kStopRequested));
  node.job->set_state(RegionState::kRunning);  // states only grow
  CHECK(node.job->state() == RegionState::kStopRequested);
  CHECK(node.memory_comes_back());
}

TEST_CASE("worker lanes share the server's lanes between them") {
  FakeServerLane first, second, third;
  LaneNode node(2);
  node.open({first.endpoint(), second.endpoint(), third.endpoint()}, 2, 9 * kLaneChunkElements);
  node.start();
  for (std::uint64_t round = 1; round <= 3; ++round) {
    node.ready(0, round, 1.0f);
    node.ready(1, round, 1.0f);
    REQUIRE(node.reaches(round));
  }
  CHECK(first.pushes == 9);
  CHECK(second.pushes == 9);
  CHECK(third.pushes == 9);
  CHECK(node.job->parameters()[8 * kLaneChunkElements] == -5.0f);
  CHECK(node.memory_comes_back());
}

TEST_CASE("memory that ZeroMQ still holds messages on is given back before it is unmapped") {
  for (const bool connected : {false, true}) {
    FakeServerLane server;
    server.mute = true;
    LaneNode node;
    // Nobody listens on port 1: everything stays queued. A mute server takes the bytes and answers nothing.
    node.open({connected ? server.endpoint() : "tcp://127.0.0.1:1"}, 1, 200 * kLaneChunkElements);
    node.give_values();
    CHECK(eventually([&] { return node.job->lane_stats(0).in_flight_bytes.value() > 0; }));
    if (!connected) CHECK(node.job->lane_stats(0).lent_messages.value() > 0);
    CHECK(node.memory_comes_back());
  }
}

TEST_CASE("a lane that is destroyed in the middle of everything gives all memory back") {
  FakeServerLane server;
  LaneNode node;
  node.open({"tcp://127.0.0.1:1"}, 2);
  node.give_values();
  CHECK(eventually([&] { return node.job->lane_stats(0).lent_messages.value() > 0; }));
  node.lanes.clear();
  const std::weak_ptr<NodeJob> watched = node.job;
  node.job.reset();
  CHECK(watched.expired());
  CHECK(node.budget->used() == 0);
}

TEST_CASE("a trainer's mistake and a server's refusal are reported once, and the lane serves the next job") {
  FakeServerLane server;
  LaneNode node;
  node.open({server.endpoint()}, 2);
  node.start();
  node.ready(1, 2, 1.0f);  // round 1 was due
  const LaneFailure mistake = node.failures.await();
  CHECK(mistake.kind == LaneFailure::Kind::kTrainer);
  CHECK(mistake.local_rank == 1);
  CHECK(node.memory_comes_back());

  server.refuse = true;
  node.open({server.endpoint()}, 1);
  node.start();
  node.ready(0, 1, 1.0f);
  REQUIRE(eventually([&] { return node.failures.all().size() == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(node.failures.all().size() == 2);
  CHECK(node.failures.all()[1].kind == LaneFailure::Kind::kRefused);
  CHECK(node.failures.all()[1].error.code == ErrorCode::kWrongLength);
  CHECK(contains(node.failures.all()[1].error.message, "no such length"));
  CHECK(node.memory_comes_back());
}

TEST_CASE("an address that is none fails the job with the address") {
  LaneNode node;
  node.open({"tcp://no port here"}, 1);
  REQUIRE(eventually([&] { return node.failures.all().size() == 1; }));
  CHECK(node.failures.all()[0].error.code == ErrorCode::kUnavailable);
  CHECK(contains(node.failures.all()[0].error.message, "tcp://no port here"));
}

TEST_CASE("noise from a server is counted and changes nothing") {
  FakeServerLane server;
  server.garbage = true;
  LaneNode node;
  node.open({server.endpoint()}, 1);
  node.start();
  node.ready(0, 1, 2.0f);
  REQUIRE(node.reaches(1));
  CHECK(node.job->parameters()[7] == -1.0f);
  CHECK(eventually([&] { return node.job->lane_stats(0).malformed.value() == 10; }));
  CHECK(node.failures.all().empty());
  CHECK(node.memory_comes_back());
}

TEST_CASE("pushes that are to be repeated and are gone fail the job, and the daemon lives on") {
  FakeServerLane server;
  LaneNode node;
  node.adjust = [](NodeJobSpec& spec) {
    auto ring =
        required(RedoRing::create(spec.view->job, spec.node, *spec.view->layout, spec.view->plan->config.push, 16));
    spec.redo = ring;
    ViewPlan resumed = *spec.view;
    resumed.start = Round(5);
    resumed.resumes = true;
    spec.view = std::make_shared<const ViewPlan>(resumed);
    spec.redo_after = {Version(3)};
  };
  node.open({server.endpoint()}, 1);
  REQUIRE(eventually([&] { return !node.failures.all().empty(); }));
  CHECK(node.failures.all()[0].kind == LaneFailure::Kind::kRefused);
  CHECK(node.failures.all()[0].error.code == ErrorCode::kUnavailable);
  CHECK(contains(node.failures.all()[0].error.message, "round 4 are no longer kept"));
  CHECK(node.memory_comes_back());
  CHECK(node.failures.all().size() == 1);

  node.adjust = nullptr;
  node.open({server.endpoint()}, 1);
  node.start();
  CHECK(node.memory_comes_back());
}

TEST_CASE("a redo ring is in use from the order to open a job until every lane has closed it") {
  FakeServerLane server;
  LaneNode node(2);
  std::shared_ptr<RedoRing> ring;
  node.adjust = [&](NodeJobSpec& spec) {
    auto made =
        required(RedoRing::create(spec.view->job, spec.node, *spec.view->layout, spec.view->plan->config.push, 16));
    spec.redo = ring = made;
  };
  node.open({server.endpoint()}, 1);
  CHECK(ring->in_use());
  node.start();
  CHECK(ring->in_use());
  CHECK(node.memory_comes_back());
  CHECK(eventually([&] { return !ring->in_use(); }));

  node.open({"tcp://no port here"}, 1);  // a lane cannot open it
  REQUIRE(eventually([&] { return node.failures.all().size() == 1; }));
  CHECK(node.memory_comes_back());
  CHECK(eventually([&] { return !ring->in_use(); }));
}

}  // namespace tributary::worker_lane_test

#include <doctest/doctest.h>

#include <set>
#include <thread>

#include "common/base/clock.h"
#include "common/config/job_json.h"
#include "common/wire/zmq_util.h"
#include "server/control.h"
#include "tests/unit/expect.h"
#include "tests/unit/fake_coordinator.h"
#include "tests/unit/required.h"
#include "tests/unit/server/lane/lane_fixture.h"
#include "tests/unit/temp_dir.h"

namespace tributary::control_test {
namespace {

using namespace testing;

// A server without coordinator and HTTP: two lanes, control, and a store if `path` is given.
struct SmallServer {
  SmallServer(const std::string& coordinator, const std::string& path) {
    ServerConfig config;
    config.heartbeat_ms = 50;
    config.index = 0;
    if (!path.empty()) store = required(Store::open(path, 0));
    control = std::move(*Control::create(config, {}, coordinator, store.get(), quiet_logger()));
    std::vector<Lane*> pointers;
    for (std::uint16_t i = 0; i < 2; ++i) {
      lanes.push_back(
          std::move(*Lane::start({{ShardIndex(0), LaneIndex(i)}, "tcp://127.0.0.1:*", ""}, *control, quiet_logger())));
      pointers.push_back(lanes.back().get());
    }
    if (store) {
      snapshotter = std::make_unique<Snapshotter>(
          *store, Snapshotter::Options{}, [this](const SnapshotDone& done) { control->snapshot_finished(done); },
          [this](const WriteCheckpoint& order, const CheckpointDone& done) {
            control->checkpoint_written(order, done);
          },
          [](const std::string&) {});
    }
    for (std::unique_ptr<StoreThread>* thread : {&store_thread, &record_thread}) {
      if (!store) break;
      *thread = std::make_unique<StoreThread>(
          "store", *store, [this](std::function<void()> event) { control->post(std::move(event)); },
          [](const std::string&) {});
    }
    control->start(pointers, {snapshotter.get(), store_thread.get(), record_thread.get()});
  }
  ~SmallServer() {
    control->stop();
    store_thread.reset();
    record_thread.reset();
    for (const auto& lane : lanes) lane->stop();
    snapshotter.reset();
  }
  std::unique_ptr<Store> store;
  std::unique_ptr<Control> control;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::unique_ptr<Snapshotter> snapshotter;
  std::unique_ptr<StoreThread> store_thread, record_thread;
};

std::string job_text(const std::string& optimizer = "sgd") {
  JobConfig config;
  config.name = "mnist";
  config.optimizer = default_optimizer(optimizer);
  config.optimizer.lr = 0.5;
  return to_canonical_json(config);
}

// Chunks 0, 2 on lane 0, chunk 1 on lane 1.
OpenJob open_message(std::uint32_t view) {
  OpenJob open;
  open.job = JobId(7);
  open.view = ViewId(view);
  open.job_json = job_text();
  open.tensors = {{"w", {3 * kChunkElements}}};
  open.chunk_elements = kChunkElements;
  for (const std::uint16_t lane : {0, 1, 0}) open.owners.push_back({ShardIndex(0), LaneIndex(lane)});
  return open;
}

ChunkKey key_in(std::uint32_t view, std::uint32_t chunk) {
  return {JobId(7), ViewId(view), NodeRank(0), ChunkIndex(chunk)};
}

// A node of one, with a connection to each lane.
struct Node {
  explicit Node(const SmallServer& server) : lane0(server.lanes[0]->endpoint()), lane1(server.lanes[1]->endpoint()) {}
  RawClient& of(std::uint32_t chunk) { return chunk == 1 ? lane1 : lane0; }
  void initialise(std::uint32_t view, float value) {
    for (std::uint32_t c = 0; c < 3; ++c) {
      of(c).send(Init{key_in(view, c)}, as_bytes(filled(value)));
      pull(view, c, value);
    }
  }
  void pull(std::uint32_t view, std::uint32_t chunk, float expected) {
    of(chunk).send(Pull{key_in(view, chunk)});
    std::vector<float> values;
    REQUIRE(of(chunk).expect<Answer>(&values));
    CHECK(values == filled(expected));
  }
  void round(std::uint32_t view, std::uint64_t round, float expected) {
    for (std::uint32_t c = 0; c < 3; ++c) {
      of(c).push(key_in(view, c), round, filled(2.0f));
      std::vector<float> values;
      const auto answer = required(of(c).expect<Answer>(&values));
      CHECK(answer.version == Version(round));
      CHECK(values == filled(expected));
    }
  }
  RawClient lane0, lane1;
};

ShardReady open_job(FakeCoordinator& coordinator, const OpenJob& open) {
  coordinator.send(open);
  const auto ready = required(coordinator.expect<ShardReady>());
  CHECK(ready.job == open.job);
  CHECK(ready.view == open.view);
  return ready;
}

// A server that the coordinator knows.
struct Serving {
  explicit Serving(const std::string& path = {}) : server(coordinator.endpoint(), path) {
    REQUIRE(coordinator.expect<Heartbeat>());
  }
  FakeCoordinator coordinator;
  SmallServer server;
};

// The same with a job, whose node has given the initial values.
struct ServingJob : Serving {
  explicit ServingJob(const std::string& path = {}) : Serving(path) {
    CHECK(ready.ok);
    node.initialise(1, 10.0f);
  }
  ShardReady ready = open_job(coordinator, open_message(1));
  Node node{server};
};

struct ServingJobOnDisk : private TempDir, ServingJob {
  ServingJobOnDisk() : ServingJob(path()) {}
};

TEST_CASE_FIXTURE(ServingJob, "a server says hello with its lanes, beats, and tells how far its jobs are") {
  CHECK(coordinator.last_hello.lane_endpoints ==
        std::vector<std::string>{server.lanes[0]->endpoint(), server.lanes[1]->endpoint()});
  CHECK(coordinator.last_hello.lane_locals ==
        std::vector<std::string>{server.lanes[0]->link_name(), server.lanes[1]->link_name()});
  CHECK(server.lanes[0]->link_name() != server.lanes[1]->link_name());
  node.round(1, 1, 9.0f);
  for (int i = 0;
       i < 100 && (coordinator.last_beat.progress.empty() || coordinator.last_beat.progress[0].min_version.value == 0);
       ++i) {
    REQUIRE(coordinator.expect<Heartbeat>());
  }
  REQUIRE(coordinator.last_beat.progress.size() == 1);
  CHECK(coordinator.last_beat.progress[0].job == JobId(7));
  CHECK(coordinator.last_beat.progress[0].view == ViewId(1));
  CHECK(coordinator.last_beat.progress[0].min_version == Version(1));
  CHECK(coordinator.last_beat.progress[0].max_version == Version(1));
  const ControlStatus status = server.control->status();
  REQUIRE(status.jobs.size() == 1);
  CHECK(status.jobs[0].view->name() == "mnist");
  CHECK(status.jobs[0].chunks == 3);
  CHECK(status.jobs[0].memory_terms().state ==
        2 * 3 * (kChunkElements * 4 + kBlockSlack));  // parameters, and those of the last round
}

TEST_CASE_FIXTURE(Serving, "facts of a gated round are told until there is a decision, which opens it on all lanes") {
  OpenJob open = open_message(1);
  JobConfig config = job_from_json(open.job_json).value();
  config.gate.clip_norm = 1.0;
  open.job_json = to_canonical_json(config);
  CHECK(open_job(coordinator, open).ok);
  Node node(server);
  node.initialise(1, 10.0f);
  for (std::uint32_t c = 0; c < 3; ++c) {
    node.of(c).push(key_in(1, c), 1, filled(2.0f));
    REQUIRE(node.of(c).expect<Ack>());
  }
  // From each lane, and then from each lane again.
  std::set<std::uint32_t> chunks;
  for (int i = 0; i < 4; ++i) {
    const auto facts = required(coordinator.expect<RoundFacts>());
    CHECK(facts.round == Round(1));
    CHECK_FALSE(facts.decided.known());
    for (const ChunkFacts& chunk : facts.chunks) {
      chunks.insert(chunk.chunk.value);
      CHECK(chunk.facts.sum_squares == 4.0 * kChunkElements);
    }
  }
  CHECK(chunks == std::set<std::uint32_t>{0, 1, 2});
  coordinator.send(RoundDecision{JobId(7), ViewId(1), Round(1), {GateVerdict::kClipped, 0.5, 110.0, 1.0f, 0}});
  for (std::uint32_t c = 0; c < 3; ++c) {
    std::vector<float> values;
    const auto answer = required(node.of(c).expect<Answer>(&values));
    CHECK(answer.version == Version(1));
    CHECK(answer.gate.norm == 110.0);
    CHECK(values == filled(9.5f));  // 10 - 0.5 (the rate) * 0.5 (the coefficient) * 2
  }
  ControlStatus status;
  REQUIRE(eventually([&] {  // it is published after the lanes have heard of the decision
    status = server.control->status();
    return status.jobs.size() == 1 && status.jobs[0].gate_round == Round(1);
  }));
  CHECK(status.jobs[0].view->plan->has_gate());
  CHECK(status.jobs[0].rounds_clipped == 1);
  CHECK(status.jobs[0].memory.arrays.sums == 1);
}

TEST_CASE_FIXTURE(ServingJob,
                  "without a store the first snapshot and the final one are refused by name, and the job still ends") {
  node.round(1, 1, 9.0f);
  coordinator.send(SnapshotAt{JobId(7), ViewId(1), Round(2)});
  auto done = coordinator.expect<SnapshotDone>();
  REQUIRE(done);
  CHECK_FALSE(done->ok);
  CHECK(contains(done->message, "no store configured"));
  coordinator.send(SnapshotAt{JobId(7), ViewId(1), Round(3)});
  CHECK_FALSE(coordinator.expect<SnapshotDone>(500));
  coordinator.send(StopJob{JobId(7), ViewId(1), StopKind::kFinished, Round(1), "training is complete"});
  done = coordinator.expect<SnapshotDone>();
  REQUIRE(done);
  CHECK(done->round == Round(1));
  CHECK_FALSE(done->ok);
  node.lane0.push(key_in(1, 0), 2, filled(2.0f));
  CHECK(node.lane0.expect<ErrorReply>()->code == ErrorCode::kUnknownJob);
}

TEST_CASE("a stopped job resumes from its final state, over a restart of the server") {
  TempDir directory;
  FakeCoordinator coordinator;
  {
    SmallServer server(coordinator.endpoint(), directory.path());
    REQUIRE(coordinator.expect<Heartbeat>());
    CHECK(open_job(coordinator, open_message(1)).ok);
    Node node(server);
    node.initialise(1, 10.0f);
    coordinator.send(SnapshotAt{JobId(7), ViewId(1), Round(1)});
    // The control thread has given the order when its status shows it, and a lane takes orders between two batches of
    // messages.
    const auto ordered = [&] { return server.control->status().jobs.at(0).snapshot_pending == Round(1); };
    REQUIRE(eventually(ordered));
    for (int i = 0; i < 3; ++i) {
      for (std::uint32_t c = 0; c < 3; ++c) node.pull(1, c, 10.0f);
    }
    node.round(1, 1, 9.0f);
    const auto periodic = required(coordinator.expect<SnapshotDone>());
    REQUIRE_MESSAGE(periodic.ok, periodic.message);
    CHECK(periodic.round == Round(1));
    CHECK(periodic.bytes >= 3 * kChunkElements * 4);
    coordinator.send(SnapshotCommit{JobId(7), Round(1)});
    node.round(1, 2, 8.0f);
    coordinator.send(StopJob{JobId(7), ViewId(1), StopKind::kStopped, Round(2), "a server is being stopped"});
    const auto final_state = required(coordinator.expect<SnapshotDone>());
    CHECK_MESSAGE(final_state.ok, final_state.message);
    CHECK(final_state.round == Round(2));
    coordinator.send(SnapshotCommit{JobId(7), Round(2)});
    CHECK(eventually([&] { return server.control->status().jobs.empty(); }));
    CHECK(eventually([&] { return server.store->jobs()[0].snapshots == std::vector<Round>{Round(2)}; }));
  }
  SmallServer server(coordinator.endpoint(), directory.path());
  REQUIRE(coordinator.expect<ServerHello>());
  REQUIRE(coordinator.last_hello.stored.size() == 1);
  CHECK(coordinator.last_hello.stored[0].snapshots == std::vector<Round>{Round(2)});
  OpenJob open = open_message(2);
  open.resume = true;
  open.resume_round = Round(2);
  for (ChunkOwner& owner : open.owners)
    owner.lane = LaneIndex(owner.lane.value ^ 1);  // today the lanes are spread differently
  const ShardReady ready = open_job(coordinator, open);
  CHECK_MESSAGE(ready.ok, ready.message);
  RawClient client(server.lanes[0]->endpoint());
  client.send(Pull{key_in(2, 1)});
  std::vector<float> values;
  const auto answer = required(client.expect<Answer>(&values));
  CHECK(answer.version == Version(2));
  CHECK(values == filled(8.0f));

  // Stopped again without a round in between: that state is durable already.
  coordinator.send(StopJob{JobId(7), ViewId(2), StopKind::kStopped, Round(2), "stopped"});
  const auto done = required(coordinator.expect<SnapshotDone>());
  CHECK(done.ok);

  open.view = ViewId(3);
  open.resume_round = Round(9);
  const ShardReady missing = open_job(coordinator, open);
  CHECK_FALSE(missing.ok);
  CHECK(contains(missing.message, "9"));
}

TEST_CASE_FIXTURE(ServingJobOnDisk,
                  "a job that begins afresh forgets snapshots that an earlier run of it completed here alone") {
  node.round(1, 1, 9.0f);
  coordinator.send(StopJob{JobId(7), ViewId(1), StopKind::kStopped, Round(1), "stopped"});
  REQUIRE(coordinator.expect<SnapshotDone>()->ok);
  REQUIRE(server.store->jobs().size() == 1);
  coordinator.last_hello.stored = {StoredJob{}};
  CHECK(open_job(coordinator, open_message(2)).ok);
  CHECK(server.store->jobs().empty());
  CHECK(coordinator.last_hello.stored.empty());
  node.initialise(2, 30.0f);
  node.round(2, 1, 29.0f);
}

TEST_CASE_FIXTURE(
    ServingJobOnDisk,
    "a snapshot that comes too late, and a stop at a round that is not everywhere, are answered with the reason") {
  node.round(1, 1, 9.0f);
  node.round(1, 2, 8.0f);
  coordinator.send(SnapshotAt{JobId(7), ViewId(1), Round(1)});
  auto done = coordinator.expect<SnapshotDone>();
  REQUIRE(done);
  CHECK_FALSE(done->ok);
  CHECK(done->round == Round(1));
  CHECK(contains(done->message, "past round 1"));
  coordinator.send(StopJob{JobId(7), ViewId(1), StopKind::kStopped, Round(5), "stopped"});
  done = coordinator.expect<SnapshotDone>();
  REQUIRE(done);
  CHECK_FALSE(done->ok);
  CHECK(contains(done->message, "not every chunk was at round 5"));
  CHECK(server.store->jobs().empty());
}

TEST_CASE_FIXTURE(Serving, "a job that cannot be opened is refused with the reason") {
  OpenJob open = open_message(1);
  SUBCASE("a lane that this server does not have") {
    open.owners[1].lane = LaneIndex(5);
    const ShardReady ready = open_job(coordinator, open);
    CHECK_FALSE(ready.ok);
    CHECK(ready.code == ErrorCode::kTopology);
    CHECK(contains(ready.message, "lane 5"));
  }
  SUBCASE("a snapshot, but no store") {
    open.resume = true;
    open.resume_round = Round(3);
    const ShardReady ready = open_job(coordinator, open);
    CHECK_FALSE(ready.ok);
    CHECK(contains(ready.message, "no store configured"));
  }
  SUBCASE("a configuration that is none") {
    open.job_json = "{";
    CHECK_FALSE(open_job(coordinator, open).ok);
  }
  SUBCASE("owners that do not fit the tensors") {
    open.owners.pop_back();
    CHECK_FALSE(open_job(coordinator, open).ok);
  }
  CHECK(open_job(coordinator, open_message(2)).ok);  // and the next one opens
}

TEST_CASE_FIXTURE(Serving, "a server without chunks of a job is ready at once and keeps nothing") {
  OpenJob open = open_message(1);
  for (ChunkOwner& owner : open.owners) owner.shard = ShardIndex(3);
  CHECK(open_job(coordinator, open).ok);
  REQUIRE(coordinator.expect<Heartbeat>());
  REQUIRE(coordinator.expect<Heartbeat>());
  CHECK(coordinator.last_beat.progress.empty());
}

TEST_CASE_FIXTURE(ServingJob,
                  "another incarnation of the coordinator gets a new hello, and the jobs of the old one are dropped") {
  const int hellos = coordinator.hellos;
  coordinator.incarnation = 78;
  REQUIRE(coordinator.expect<Heartbeat>());
  REQUIRE(coordinator.expect<ServerHello>());
  CHECK(coordinator.hellos == hellos + 1);
  CHECK(eventually([&] { return server.control->status().coordinator_incarnation == 78; }));
  CHECK(server.control->status().jobs.empty());
  node.lane0.send(Pull{key_in(1, 0)});
  CHECK(node.lane0.expect<ErrorReply>()->code == ErrorCode::kUnknownJob);
}

TEST_CASE_FIXTURE(ServingJob,
                  "a restart drops the job, a new view opens it again, and messages of the old view are refused") {
  coordinator.send(StopJob{JobId(7), ViewId(1), StopKind::kRestart, Round(0), "node 1 is lost"});
  CHECK(open_job(coordinator, open_message(2)).ok);
  node.lane0.push(key_in(1, 0), 1, filled(2.0f));
  CHECK(node.lane0.expect<ErrorReply>()->code == ErrorCode::kStaleView);
  node.initialise(2, 30.0f);
  node.round(2, 1, 29.0f);
}

TEST_CASE_FIXTURE(Serving, "nonsense from the coordinator's address is ignored") {
  coordinator.send_bytes(as_bytes(filled(3.0f)));
  coordinator.send(WorkerHello{"me", 1});
  coordinator.send(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), ""});
  coordinator.send(SnapshotAt{JobId(99), ViewId(1), Round(1)});
  coordinator.send(SnapshotCommit{JobId(99), Round(1)});
  CHECK(open_job(coordinator, open_message(1)).ok);
}

TEST_CASE_FIXTURE(Serving, "a draining server asks the coordinator, and is done at its word") {
  CHECK(open_job(coordinator, open_message(1)).ok);
  server.control->drain();
  const auto request = required(coordinator.expect<DrainRequest>());
  CHECK(request.incarnation == coordinator.last_hello.incarnation);
  CHECK(coordinator.expect<DrainRequest>());  // again: the first one, or its answer, may have been lost
  CHECK_FALSE(server.control->drained());     // its job is still open
  coordinator.send(DrainDone{});
  CHECK(eventually([&] { return server.control->drained(); }));
}

TEST_CASE("a draining server without jobs does not wait for a coordinator that is gone") {
  SmallServer server("tcp://127.0.0.1:1", "");
  server.control->drain();
  CHECK(eventually([&] { return server.control->drained(); }));
}

}  // namespace
}  // namespace tributary::control_test

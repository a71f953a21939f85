// NodeJobs and the attach server with jobs of mode "allreduce": the node's messages to the coordinator, and their
// effects.
#include <doctest/doctest.h>

#include "common/config/config_check.h"
#include "common/config/job_json.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node_fixture.h"
#include "worker/local_address.h"

namespace tributary::allreduce_node_test {
namespace {

using namespace testing;

SessionOptions ring_options(const FakeNode& node, std::uint32_t node_rank, std::uint32_t nodes) {
  SessionOptions options = node.session_options(0, 1, nodes);
  options.topology.rank = options.topology.node_rank = node_rank;
  options.job.mode = Mode::kAllreduce;
  options.job.allreduce.algorithm = AllreduceAlgorithm::kFlat;
  return options;
}

TEST_CASE("every node says which checkpoint it has when it joins an all-reduce job") {
  for (const std::uint32_t rank : {0u, 1u}) {
    CAPTURE(rank);
    FakeNode node;
    node.lanes.set_checkpoint(std::optional<Round>(Round(40)));
    node.run();
    auto attached = node.attach(ring_options(node, rank, 2));
    const JoinJob join = node.coordinator.await<JoinJob>();
    CHECK(join.node == NodeRank(rank));
    CHECK(join.checkpoint_round == Round(40));
    node.welcome(1, Round(40));
    CHECK(FakeNode::session_of(std::move(attached))->resume_round() == Round(40));
  }
}

TEST_CASE("what became of a last checkpoint is told to the coordinator until it answers") {
  struct : TrainerPort {
    void send(TrainerId, const AttachMessage&, std::span<const int>) override {}
  } trainers;
  FakeCoordinator coordinator;
  FakeLanes lanes(1);
  NodeJobs jobs({}, trainers, coordinator, lanes, quiet_logger());
  const auto said = [&] { return coordinator.all<SnapshotDone>().size(); };
  std::uint64_t now = 1000;
  const auto pass = [&] { jobs.tick(now += CheckpointReports::kRepeatMs); };
  const SnapshotDone done{JobId(99), ViewId(2), Round(7), true, 0, {}};
  jobs.checkpointed(done, now);
  CHECK(said() == 1);
  CHECK(coordinator.all<SnapshotDone>().back().round == Round(7));
  jobs.tick(now + 10);
  CHECK(said() == 1);
  pass();
  CHECK(said() == 2);
  jobs.on_control(SnapshotDone{JobId(99), ViewId(1), Round(7), true, 0, {}}, now);  // of another view
  pass();
  CHECK(said() == 3);
  SUBCASE("with what the others hear") {
    jobs.on_control(done, now);
  }
  SUBCASE("that the view counts for nothing") {
    jobs.on_control(StopJob{done.job, done.view, StopKind::kRestart, Round(3), "a node was lost"}, now);
  }
  SUBCASE("never, because it is another one") {
    jobs.coordinator_restarted(now);
  }
  pass();
  CHECK(said() == 3);
  for (std::size_t i = 0; i < 2 * CheckpointReports::kMax; ++i)
    jobs.checkpointed({JobId(i), ViewId(1), {}, true, 0, {}}, now);
  const std::size_t before = said();
  pass();
  CHECK(said() == before + CheckpointReports::kMax);
}

TEST_CASE("a job on servers says nothing of checkpoints") {
  FakeNode node;
  node.lanes.set_checkpoint(std::optional<Round>(Round(40)));
  node.run();
  auto attached = node.attach(node.session_options());
  CHECK(node.coordinator.await<JoinJob>().checkpoint_round == Round());
  node.welcome();
  CHECK(FakeNode::session_of(std::move(attached))->fresh());
}

TEST_CASE("node 0 joins only when the checkpoint of the view before is on the disk") {
  FakeNode node;
  node.lanes.set_checkpoint(std::optional<Round>());  // being written
  node.run();
  auto attached = node.attach(ring_options(node, 0, 1));
  REQUIRE(eventually([&] { return node.server->summaries().size() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(3 * AttachedJob::kCheckpointRetryMs));
  CHECK(node.coordinator.all<JoinJob>().empty());
  node.lanes.set_checkpoint(std::optional<Round>(Round(7)));
  CHECK(node.coordinator.await<JoinJob>().checkpoint_round == Round(7));
  node.welcome(1, Round(7));
  CHECK(FakeNode::session_of(std::move(attached))->resume_round() == Round(7));
}

TEST_CASE("a node whose checkpoints are damaged joins all the same, and says what is wrong") {
  FakeNode node;
  node.lanes.set_checkpoint(fail(ErrorCode::kStoreFormat, "checkpoint 'a': a checksum is wrong"));
  node.run();
  auto attached = node.attach(ring_options(node, 0, 1));
  const auto join = node.coordinator.await<JoinJob>();
  CHECK(join.checkpoint_round == Round());
  CHECK(join.checkpoint_flaw == "checkpoint 'a': a checksum is wrong");
  node.welcome(1, Round(7));
  CHECK(FakeNode::session_of(std::move(attached))->resume_round() == Round(7));
}

TEST_CASE("trainers hear for whom the job waits also while a checkpoint is being written") {
  struct : TrainerPort {
    void send(TrainerId, const AttachMessage& message, std::span<const int>) override {
      if (const auto* waits = std::get_if<AttachWaits>(&message)) told.push_back(waits->missing);
    }
    std::vector<std::string> told;
  } trainers;
  FakeCoordinator coordinator;
  FakeLanes lanes(1);
  lanes.set_checkpoint(std::optional<Round>());
  NodeJobs jobs({.max_memory = 64u << 20}, trainers, coordinator, lanes, quiet_logger());
  AttachRequest request;
  JobConfig config{.name = "a-job", .mode = Mode::kAllreduce};
  request.job_json = to_canonical_json(config);
  request.world_size = 2;
  request.tensors = small_model();
  request.hears_waits = true;
  std::uint64_t now = 1000;
  jobs.attach(TrainerId(1), request, 0, now);
  jobs.tick(now += AttachedJob::kTellWaitsMs);
  CHECK(coordinator.all<JoinJob>().empty());
  CHECK(trainers.told == std::vector<std::string>{"the coordinator's word"});
  lanes.set_checkpoint(std::optional<Round>(Round(40)));
  jobs.tick(now += AttachedJob::kJoinRepeatMs);
  REQUIRE(coordinator.all<JoinJob>().size() == 1);
  jobs.on_control(JobWaits{"a-job", "node 1"}, now);
  trainers.told.clear();
  jobs.tick(now += AttachedJob::kTellWaitsMs);
  CHECK(trainers.told == std::vector<std::string>{"node 1"});
  // All of a checkpoint is read to find out whether it is whole: once, however long the others take.
  const int looked = lanes.looked();
  for (int again = 0; again < 3; ++again) jobs.tick(now += AttachedJob::kJoinRepeatMs);
  CHECK(coordinator.all<JoinJob>().size() == 4);
  CHECK(coordinator.all<JoinJob>().back().checkpoint_round == Round(40));
  CHECK(lanes.looked() == looked);
}

TEST_CASE("a checkpoint of another training is told to the trainers, and nothing is joined") {
  FakeNode node;
  node.lanes.set_checkpoint(fail(ErrorCode::kConfigMismatch, "a checkpoint of another training: train.seed"));
  node.run();
  const Error error = error_of(node.attach(ring_options(node, 0, 1)));
  CHECK(error.code == ErrorCode::kConfigMismatch);
  CHECK(contains(error.message, "train.seed"));
  CHECK(node.coordinator.all<JoinJob>().empty());
}

TEST_CASE("an all-reduce job is opened with what its lane must know, and its trainers ring that lane only") {
  RunningNode node(3);
  auto attached = node.attach(ring_options(node, 1, 4));
  node.coordinator.await<JoinJob>();
  JobWelcome welcome;
  const auto layout = required(bucket_layout(small_model(), 4096));
  welcome.name = "a-job";
  welcome.job = JobId(99);
  welcome.view = ViewId(1);
  welcome.chunk_elements = layout.chunk_elements();
  welcome.owners = layout.owners();
  welcome.node = NodeRank(1);
  welcome.nodes = 4;
  node.server->on_control(welcome);
  const auto session = FakeNode::session_of(std::move(attached));
  CHECK(node.lanes.job()->view().nodes == 4);
  CHECK(node.lanes.job()->plan().config.mode == Mode::kAllreduce);
  CHECK(node.lanes.job()->plan().config.allreduce.algorithm == AllreduceAlgorithm::kFlat);
  REQUIRE(node.lanes.job());
  CHECK(!node.lanes.job()->plan().on_servers());
  CHECK_FALSE(node.lanes.job()->spec().init());  // node 0's is
  FakeLanes::publish(*node.lanes.job(), Version(0));
  REQUIRE(session->start());
  for (std::size_t t = 0; t < small_model().size(); ++t) session->ready(t, 1);
  CHECK(node.lanes.rung(0));
  CHECK_FALSE(node.lanes.rung(1));
  CHECK_FALSE(node.lanes.rung(2));
  node.lanes.complete(Round(1));
  CHECK(*session->wait() == StepState::kContinue);
  // The coordinator gets the job's progress.
  REQUIRE(eventually([&] {
    const auto progress = node.server->heartbeat().progress;
    return progress.size() == 1 && progress[0].job == JobId(99) && progress[0].min_version == Version(1);
  }));
}

TEST_CASE("the memory of the lane counts against the worker's limit") {
  RunningNode node(1, 400'000);
  SessionOptions options = ring_options(node, 0, 1);
  options.job.optimizer = default_optimizer("adamw");
  // Parameters and gradients fit, two state arrays and their copies for checkpoints do not.
  auto attached = node.attach(options, {{"w", {40'000}}});
  node.admit();
  const Error error = error_of(std::move(attached));
  CHECK(error.code == ErrorCode::kLimit);
  CHECK(contains(error.message, "max_shared_memory"));
}

TEST_CASE("addresses of other nodes reach the lane while their view runs here") {
  RunningNode node;
  auto attached = node.attach(ring_options(node, 1, 2));
  node.coordinator.await<JoinJob>();
  const PeerAddress mine{JobId(99), ViewId(1), NodeRank(0), "key", {std::byte{5}}};
  node.server->on_control(PeerAddresses{{mine}});  // nothing runs yet
  node.welcome();
  const auto session = FakeNode::session_of(std::move(attached));
  PeerAddress other = mine;
  other.view = ViewId(2);
  PeerAddress far = mine;
  far.node = NodeRank(3);
  far.value.clear();  // of a node that is not beside this one
  node.server->on_control(PeerAddresses{{other, far, mine}});
  REQUIRE(eventually([&] { return !node.lanes.addresses().empty(); }));
  REQUIRE(node.lanes.addresses().size() == 1);
  CHECK(node.lanes.addresses()[0].view == ViewId(1));
  CHECK(node.lanes.addresses()[0].key == "key");
}

TEST_CASE("this machine's address is the one that the route to the coordinator has") {
  CHECK(*local_address_towards("tcp://127.0.0.1:7070") == "127.0.0.1");
  CHECK(*local_address_towards("tcp://localhost:7070") == "127.0.0.1");
  CHECK(*local_address_towards("ipc:///tmp/coordinator") == "127.0.0.1");
  const auto unknown = failure_of(local_address_towards("tcp://no-such-host.invalid:7070"));
  CHECK(contains(unknown.message, "no-such-host.invalid"));
}

}  // namespace
}  // namespace tributary::allreduce_node_test

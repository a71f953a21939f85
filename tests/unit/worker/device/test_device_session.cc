// From the attach to the lanes with ranks on (simulated) devices.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/lane/local_server.h"
#include "tests/unit/worker/device/device_node_fixture.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::device_session_test {

using namespace testing;

namespace {

// Attaches rank by rank; null opener: on the host.
std::vector<std::unique_ptr<Session>> attach_all(FakeNode& node,
                                                 const std::vector<std::shared_ptr<FakeTrainerDevice>>& openers) {
  std::vector<FakeNode::Attached> attached;
  const std::size_t joins = node.coordinator.all<JoinJob>().size();
  for (std::uint32_t rank = 0; rank < openers.size(); ++rank) {
    SessionOptions options = node.session_options(rank, static_cast<std::uint32_t>(openers.size()));
    options.device = openers[rank];
    attached.push_back(node.attach(options));
  }
  node.coordinator.await<JoinJob>(joins + 1);
  node.welcome(static_cast<std::uint32_t>(joins + 1));
  std::vector<std::unique_ptr<Session>> sessions;
  for (auto& one : attached) sessions.push_back(FakeNode::session_of(std::move(one)));
  return sessions;
}

}  // namespace

TEST_CASE("trainers on devices are lent their gradients and their device's parameters, and give them back first") {
  Devices devices(2);
  const Runner runner(devices.api);
  {
    RunningNode node(1, 64u << 20, devices.node);
    const std::vector<std::shared_ptr<FakeTrainerDevice>> openers = {devices.opener(1), devices.opener(0),
                                                                     devices.opener(1)};
    auto sessions = attach_all(node, openers);
    CHECK(node.coordinator.all<JoinJob>().back().on_devices);
    const auto job = node.lanes.job();
    REQUIRE(job->spec().devices);
    CHECK(job->spec().devices->plan().width() == 2);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      REQUIRE(sessions[rank]->on_device());
      CHECK(openers[rank]->mapped == 2);
      // The trainer sees the worker's memory, tensor by tensor.
      const DeviceMemory& memory = job->spec().devices->memory();
      const std::uint64_t offset = sessions[rank]->layout().tensor_offset(2);
      CHECK(sessions[rank]->gradient_device(2) == memory.gradients(static_cast<std::uint32_t>(rank), 0) + offset);
    }
    CHECK(sessions[0]->parameters_device(1) == sessions[2]->parameters_device(1));
    CHECK(sessions[0]->parameters_device(1) != sessions[1]->parameters_device(1));
    CHECK(job->gradients(0) == nullptr);
    CHECK(job->rank_bytes() < job->node_bytes());

    // Initial values and versions still go through shared memory.
    sessions[0]->initial(0)[0] = 2.0f;
    for (auto& session : sessions) CHECK(session->start());
    CHECK(job->parameters()[0] == 2.0f);
    for (std::size_t t = 0; t < 3; ++t) sessions[1]->ready(t, 4);
    CHECK(job->tensor_words(1)[2].round.load() == 1);
    sessions.clear();
    for (const auto& opener : openers) CHECK(opener->mapped == 0);
    node.server->stop();
  }
  CHECK(devices.api->live() == FakeDeviceApi::Live{});
  CHECK(devices.api->violations().empty());
}

TEST_CASE("device memory is not freed while a trainer of an ended view still has it open") {
  Devices devices(1);
  const Runner runner(devices.api);
  RunningNode node(1, 64u << 20, devices.node);
  auto sessions = attach_all(node, {devices.opener(0), devices.opener(0)});
  const auto before = devices.api->live();
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "a node is lost"});
  REQUIRE(eventually([&] { return node.lanes.closed() == 1; }));
  sessions[0].reset();
  CHECK(devices.api->live() == before);
  sessions[1].reset();
  CHECK(eventually([&] { return devices.api->live() == FakeDeviceApi::Live{}; }));
  // And the next view gets memory anew.
  auto next = attach_all(node, {devices.opener(0), devices.opener(0)});
  CHECK(next[0]->on_device());
}

TEST_CASE("auto reduces on the host where the devices cannot: none here, another one, mixed ranks, no memory") {
  struct Case {
    const char* what;
    std::uint32_t devices;
    std::size_t bytes;
    std::vector<int> ranks;  // device of each; -1: host
  };
  const Case cases[] = {{"none", 0, 1u << 30, {0, 0}},
                        {"another", 1, 1u << 30, {0, 7}},
                        {"mixed", 1, 1u << 30, {0, -1}},
                        {"memory", 1, 10'000, {0, 0}},
                        {"all on the host", 1, 1u << 30, {-1, -1}}};
  for (const Case& one : cases) {
    CAPTURE(one.what);
    Devices devices(one.devices, "auto", one.bytes);
    const Runner runner(devices.api);
    RunningNode node(1, 64u << 20, devices.node);
    std::vector<std::shared_ptr<FakeTrainerDevice>> openers;
    for (const int device : one.ranks) {
      openers.push_back(device < 0 ? nullptr : devices.opener(static_cast<std::uint32_t>(device)));
    }
    auto sessions = attach_all(node, openers);
    for (auto& session : sessions) {
      CHECK_FALSE(session->on_device());
      session->gradient(0)[0] = 1.0f;
      CHECK(session->start());
    }
    CHECK_FALSE(node.lanes.job()->spec().devices);
    CHECK(devices.api->live() == FakeDeviceApi::Live{});
  }
}

TEST_CASE("node_reduction = device refuses the attach and says why") {
  const auto refused = [](Devices& devices, int device) {
    RunningNode node(1, 64u << 20, devices.node);
    SessionOptions options = node.session_options();
    if (device >= 0) options.device = devices.opener(static_cast<std::uint32_t>(device));
    const Error error = error_of(node.attach(options));
    CHECK(contains(error.message, "node_reduction = \"device\""));
    return error.message;
  };
  Devices none(0, "device"), one(1, "device");
  CHECK(contains(refused(none, 0), "no device here"));
  CHECK(contains(refused(one, -1), "host memory"));
  CHECK(contains(refused(one, 7), "GPU-elsewhere"));

  // Too little memory shows when the view begins.
  Devices small(1, "device", 10'000);
  RunningNode node(1, 64u << 20, small.node);
  SessionOptions options = node.session_options();
  options.device = small.opener(0);
  auto attached = node.attach(options);
  node.admit();
  const Error error = error_of(std::move(attached));
  CHECK(error.code == ErrorCode::kLimit);
  CHECK(contains(error.message, "cannot be reduced on devices: fake:0"));
}

namespace {

// A node that lends memory to a trainer that cannot open it.
struct CannotOpen {
  explicit CannotOpen(const std::string& mode = "auto") : devices(1, mode) {
    options = node.session_options();
    const auto device = devices.opener(0);
    device->refuse = true;
    options.device = device;
  }
  Devices devices;
  const Runner runner{devices.api};
  RunningNode node{1, 64u << 20, devices.node};
  SessionOptions options;
};

}  // namespace

TEST_CASE("a trainer that cannot open what it is lent attaches again without, and does not ask for it any more") {
  CannotOpen trainer;
  Devices& devices = trainer.devices;
  FakeNode& node = trainer.node;
  SessionOptions& options = trainer.options;
  options.recovery = std::make_shared<RecoveryHandle>();
  std::vector<std::string> notes;
  options.note = [&](const std::string& text) { notes.push_back(text); };
  for (std::uint32_t view = 1; view <= 3; view += 2) {  // the first view ends when its memory cannot be opened
    auto attached = node.attach(options);
    node.coordinator.await<JoinJob>(view == 1 ? 1 : 3);
    node.welcome(view);
    if (view == 1) node.admit(2);
    const auto session = FakeNode::session_of(std::move(attached));
    CHECK_FALSE(session->on_device());
    CHECK(session->finish(LeaveKind::kFailed));
  }
  const auto said = std::ranges::count_if(notes, [](const std::string& note) {
    return contains(note, "planned refusal of a mapping; attaching again, with gradients in host memory");
  });
  CHECK(said == 1);
  CHECK(eventually([&] { return devices.api->live() == FakeDeviceApi::Live{}; }));
}

TEST_CASE("a worker that insists on device memory that cannot be opened: the error has both reasons") {
  CannotOpen trainer("device");
  FakeNode& node = trainer.node;
  auto attached = node.attach(trainer.options);
  node.admit();
  const Error error = error_of(std::move(attached));
  CHECK(contains(error.message, "node_reduction = \"device\""));
  CHECK(contains(error.message, "planned refusal of a mapping"));
}

TEST_CASE("lanes exchange chunks of ranks on one device and on several with a server") {
  for (const std::uint32_t count : {1u, 3u}) {
    const auto api = std::make_shared<FakeDeviceApi>(FakeDeviceOptions{.devices = count});
    const Runner runner(api);
    {
      FakeServerLane first, second;
      LaneNode node(2);
      node.open({first.endpoint(), second.endpoint()}, 2 * count, 11 * kLaneChunkElements, api);
      node.start();
      for (std::uint64_t round = 1; round <= 3; ++round) {
        for (std::uint32_t rank = 0; rank < 2 * count; ++rank) node.ready(rank, round, static_cast<float>(rank + 1));
        REQUIRE(node.reaches(round));
      }
      const float sum = static_cast<float>(count * (2 * count + 1));
      for (std::uint32_t d = 0; d < count; ++d) {
        const float* parameters = node.job->spec().devices->memory().parameters(d, 0);
        CHECK(parameters[0] == 1.0f - 3.0f * sum);
        CHECK(parameters[10 * kLaneChunkElements] == 1.0f - 3.0f * sum);
      }
      CHECK(node.failures.all().empty());
      CHECK(eventually([&] { return node.job->header().reduce_ns.load() > 0; }));
      CHECK(node.memory_comes_back());
    }
    CHECK(eventually([&] { return api->live() == FakeDeviceApi::Live{}; }));
    CHECK(api->violations().empty());
  }
}

TEST_CASE("frames of devices reach a server on this machine in shared memory, through a copy") {
  for (const auto& [push, pull] : {std::pair{"fp32", "fp32"}, std::pair{"int8", "int8-delta"}}) {
    CAPTURE(push);
    const auto api = std::make_shared<FakeDeviceApi>(FakeDeviceOptions{.devices = 2});
    const Runner runner(api);
    {
      LocalServer server;
      LaneNode node;
      node.push = *parse_encoding(push);
      node.pull = *parse_encoding(pull);
      server.serve(node);
      node.open({server.lane->endpoint()}, 2, 9 * kLaneChunkElements, api);
      node.start();
      for (std::uint64_t round = 1; round <= 3; ++round) {
        node.ready(0, round, 1.0f);
        node.ready(1, round, 3.0f);
        REQUIRE(node.reaches(round));
      }
      for (std::uint32_t d = 0; d < 2; ++d) {
        CHECK(node.job->spec().devices->memory().parameters(d, 0)[0] == doctest::Approx(1.0f - 3.0f * 2.0f));
      }
      CHECK(server.lane->counters().shared_payload_bytes.value() > 0);
      CHECK(server.lane->counters().socket_payload_bytes.value() == 0);
      // The node's residuals are kept, too.
      const bool keeps = make_encoding(node.push)->keeps_residual();
      server.lane->stop_job(JobId(5), ViewId(2), true, Round(3), false);
      if (keeps) node.lanes[0]->close(node.job, true);
      const auto stopped = required(server.listener.stopped());
      CHECK(stopped.kept);
      for (std::size_t c = 0; c < node.job->layout().chunks(); ++c) {
        const auto captured = required(server.listener.captured());
        CHECK(captured.state.residuals.size() == (keeps ? 1 : 0));
      }
      CHECK(server.lane->counters().socket_payload_bytes.value() == 0);
      CHECK(node.failures.all().empty());
      CHECK(node.memory_comes_back());
    }
    CHECK(eventually([&] { return api->live() == FakeDeviceApi::Live{}; }));
    CHECK(api->violations().empty());
  }
}

TEST_CASE("a device that is lost ends the view, not the job: the next daemon goes on") {
  FakeDeviceOptions options{.devices = 2};
  options.faults.kernel_faults = 12;  // the second chunk or so of the round
  const auto api = std::make_shared<FakeDeviceApi>(options);
  const Runner runner(api);
  FakeServerLane server;
  LaneNode node;
  node.open({server.endpoint()}, 2, 9 * kLaneChunkElements, api);
  node.start();
  node.ready(0, 1, 1.0f);
  node.ready(1, 1, 1.0f);
  const LaneFailure failure = node.failures.await();
  CHECK(failure.kind == LaneFailure::Kind::kViewOver);
  CHECK(failure.error.code == ErrorCode::kUnavailable);
  CHECK(contains(failure.error.message, "an illegal memory access was encountered"));
  CHECK(node.memory_comes_back());
  NodeDevices devices(WorkerConfig(), api, "", quiet_logger());
  CHECK(contains(devices.lost(), "an illegal memory access was encountered"));
}

TEST_CASE("other jobs' groups wait while a node's communicators take their memory") {
  FakeDeviceOptions options{.devices = 2};
  options.faults.communicators_hang = true;
  const auto api = std::make_shared<FakeDeviceApi>(options);
  const Runner runner(api);
  FakeServerLane server;
  LaneNode node;
  node.device_options.engine.timeout_ns = 500'000'000;
  node.open({server.endpoint()}, 2, 9 * kLaneChunkElements, api);
  node.give_values();
  std::atomic<bool> launched = false;
  std::jthread other([&] {
    const LaunchGate::Hold hold = api->launches().launch();
    launched = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_FALSE(launched);
  CHECK(eventually([&] { return launched.load(); }));  // the engine has given them up
}

TEST_CASE("devices whose driver is about to begin are waited for, and not given up without a word") {
  int looks = 0, ready_at = 3;
  ErrorCode code = ErrorCode::kUnavailable;
  const auto look = [&]() -> Result<std::shared_ptr<DeviceApi>> {
    if (++looks >= ready_at) return std::make_shared<FakeDeviceApi>(FakeDeviceOptions{.devices = 2});
    return fail(code, "system not yet initialized (cudaErrorSystemNotReady)");
  };
  const auto find = [&](std::chrono::milliseconds patience) {
    return NodeDevices::of_this_machine(WorkerConfig(), quiet_logger(), look, patience, std::chrono::milliseconds(1));
  };
  SUBCASE("they come") {
    const auto devices = required(find(std::chrono::seconds(60)));
    CHECK(devices->api());
    CHECK(looks == 3);
  }
  SUBCASE("they do not come in time: the daemon ends, to be started again") {
    ready_at = 1 << 30;
    const auto devices = failure_of(find(std::chrono::milliseconds(20)));
    CHECK(devices.code == ErrorCode::kUnavailable);
    CHECK(contains(devices.message, "cudaErrorSystemNotReady"));
    CHECK(contains(devices.message, "node_reduction = \"host\""));
  }
  SUBCASE("there are none for another reason") {
    code = ErrorCode::kNotFound;
    const auto devices = required(find(std::chrono::seconds(60)));
    CHECK_FALSE(devices->api());
    CHECK(looks == 1);
  }
}

TEST_CASE("a collective that hangs ends the job with words, and the lane serves the next one") {
  FakeDeviceOptions options{.devices = 2};
  options.faults.collective = FakeFaults::Collective::kHangs;
  options.faults.at = 7;
  const auto api = std::make_shared<FakeDeviceApi>(options);
  const Runner runner(api);
  FakeServerLane server;
  LaneNode node;
  node.device_options.engine.timeout_ns = 200'000'000;
  node.open({server.endpoint()}, 2, 9 * kLaneChunkElements, api);
  node.start();
  node.ready(0, 1, 1.0f);
  node.ready(1, 1, 1.0f);
  const LaneFailure failure = node.failures.await();
  CHECK(failure.kind == LaneFailure::Kind::kRefused);
  CHECK(failure.error.code == ErrorCode::kDevice);
  CAPTURE(failure.error.message);
  CHECK(contains(failure.error.message, "failed: nccl"));
  CHECK(contains(failure.error.message, " of chunk"));
  CHECK(contains(failure.error.message, "device 1 (fake:1, GPU-fake-1, local rank 1)"));
  CHECK(api->aborted() == 2);
  CHECK(node.memory_comes_back());
  CHECK(eventually([&] { return api->live() == FakeDeviceApi::Live{}; }));

  const auto healthy = std::make_shared<FakeDeviceApi>(FakeDeviceOptions{.devices = 2});
  const Runner second(healthy);
  FakeServerLane other;
  node.open({other.endpoint()}, 2, 9 * kLaneChunkElements, healthy);
  node.start();
  node.ready(0, 1, 1.0f);
  node.ready(1, 1, 1.0f);
  CHECK(node.reaches(1));
  CHECK(node.memory_comes_back());
}

}  // namespace tributary::device_session_test

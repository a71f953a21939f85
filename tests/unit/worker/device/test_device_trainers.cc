// Trainers in memory that the worker lends, from the attach to the last round: real sessions, attach server, lanes and
// device engines, on simulated devices. Their memory is the host's, so that trainers compute in it on the CPU.
#include <doctest/doctest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/files/digest.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/train/synthetic_images.h"
#include "tests/unit/worker/device/device_node_fixture.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"
#include "tests/unit/worker/welcoming_node.h"
#include "train/rank_compute.h"

namespace tributary::device_trainers_test {

using namespace testing;
using namespace train;

namespace {

constexpr std::uint32_t kRanks = 2;

const ImageSet& training_set() {
  static const ImageSet kSet = synthetic(300, 1);
  return kSet;
}

struct Case {
  std::uint32_t devices = 1;  // 0: the worker reduces on the host
  Mode mode = Mode::kSync;
  bool second_refuses = false;  // to open what it is lent
};

JobConfig job_of(Mode mode) {
  JobConfig job{.name = "lent", .mode = mode};
  job.train.hidden = {128};
  job.train.global_batch = 32;
  job.train.epochs = 2;
  if (mode == Mode::kLocalSgd) {
    job.local.steps = 3;
    job.local.optimizer = default_optimizer("adam");
    job.local.optimizer.lr = 0.003;
    job.train.epochs = 4;
  }
  if (mode == Mode::kAllreduce) {
    job.optimizer = default_optimizer("sgd");
    job.optimizer.lr = 0.1;
  }
  return job;
}

struct Outcome {
  bool on_device = false;
  std::uint32_t restarts = 0;
  std::string notes, digest;
  double accuracy = 0.0;
};

// A view of the job, up to its last round. False: it ended before its first round, because a rank was lost.
bool trains(Session& session, RankCompute& compute, const JobConfig& job, Rank rank, Outcome& outcome) {
  const std::vector<TensorSpec>& tensors = compute.shape().tensors();
  for (std::size_t t = 0; t < tensors.size() && session.fresh() && rank.value == 0; ++t) {
    compute.shape().initialise(job.train.seed, t, session.initial(t));
  }
  if (const Status started = session.start(); !started) {
    REQUIRE(started.error().code == ErrorCode::kUnavailable);
    REQUIRE_FALSE(session.stop_reason().empty());
    return false;
  }
  outcome.on_device = session.on_device();
  std::vector<const float*> parameters;
  std::vector<float*> gradients;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    parameters.push_back(outcome.on_device ? session.parameters_device(t) : session.parameters(t).data());
    gradients.push_back(outcome.on_device ? session.gradient_device(t) : session.gradient(t).data());
  }
  compute.bind({.parameters = parameters, .gradients = gradients});
  // The second rank reports ready from a thread of its own, as a GPU's driver does.
  const auto ready = [&](std::size_t tensor, std::uint64_t weight) {
    if (rank.value == 0) return session.ready(tensor, weight);
    std::jthread([&] { session.ready(tensor, weight); });
  };
  const Round last = last_round(job.train, compute.sampler());
  for (Round round(1); round <= last; round = round.next()) {
    REQUIRE(compute.gradient(round, rank, nullptr, ready));
    const auto state = required(session.wait());
    if (state == StepState::kRestart && round == Round(1)) {
      compute.unbind();
      return false;
    }
    REQUIRE(state == StepState::kContinue);
  }
  static const ImageSet kTest = synthetic(100, 2);
  outcome.accuracy = compute.evaluate(kTest).accuracy();
  outcome.digest = parameters_digest(tensors, parameters);
  compute.unbind();
  CHECK(session.finish(LeaveKind::kFinished));
  return true;
}

Outcome train_rank(const JobConfig& job, const std::string& socket, std::uint32_t rank,
                   const std::shared_ptr<TrainerDevice>& device) {
  Outcome outcome;
  auto compute = required(RankCompute::make(job, training_set(), kRanks));
  SessionOptions options{
      .socket = socket,
      .job = job,
      .topology = {.rank = rank, .world_size = kRanks, .local_rank = rank, .local_world_size = kRanks},
      .device = device,
      .recovery = std::make_shared<RecoveryHandle>()};
  options.note = [&](const std::string& text) { outcome.notes += text + "\n"; };
  for (;; ++outcome.restarts) {
    REQUIRE(outcome.restarts < 3);
    const auto session = required(Session::attach(options, compute.shape().tensors()));
    if (trains(*session, compute, job, Rank(rank), outcome)) return outcome;
  }
}

// By rank.
std::vector<Outcome> train(const Case& what) {
  const JobConfig job = job_of(what.mode);
  Devices devices(what.devices);
  std::vector<Outcome> outcomes;
  {
    const Runner runner(devices.api);
    FakeServerLane server;
    server.rate = what.mode == Mode::kLocalSgd ? 0.5f : 0.1f / 32.0f;  // of two replicas, or per sample
    WelcomingNode node(devices.node, server.endpoint());
    const auto first = devices.opener(0), second = devices.opener(what.devices > 1 ? 1 : 0);
    second->refuse = what.second_refuses;
    auto other = std::async(std::launch::async, [&] { return train_rank(job, node.socket(), 1, second); });
    outcomes.push_back(train_rank(job, node.socket(), 0, first));
    outcomes.push_back(other.get());
    CHECK(first->mapped == 0);
    CHECK(second->mapped == 0);
  }
  CHECK(devices.api->live() == FakeDeviceApi::Live{});
  CHECK(devices.api->violations().empty());
  CHECK(outcomes[0].digest == outcomes[1].digest);
  CHECK(outcomes[0].on_device == outcomes[1].on_device);
  return outcomes;
}

// The job in host memory. It does learn; chance is 0.1.
Outcome on_host(Mode mode) {
  const Outcome host = train({.devices = 0, .mode = mode})[0];
  CHECK_FALSE(host.on_device);
  CHECK(host.accuracy > 0.5);
  return host;
}

}  // namespace

TEST_CASE("trainers in lent memory end in the bits of trainers in host memory, on one device and on two") {
  for (const Mode mode : {Mode::kSync, Mode::kLocalSgd}) {
    CAPTURE(word(mode));
    const Outcome host = on_host(mode);
    for (const std::uint32_t devices : {1u, 2u}) {
      CAPTURE(devices);
      const Outcome found = train({.devices = devices, .mode = mode})[0];
      CHECK(found.on_device);
      CHECK(found.restarts == 0);
      CHECK(found.digest == host.digest);
      CHECK(found.accuracy == host.accuracy);
    }
  }
}

TEST_CASE("an all-reduce job in lent memory of two devices ends in the bits of one in host memory") {
  const Outcome host = on_host(Mode::kAllreduce);
  // Both ranks on one device: NCCL would refuse them.
  const Outcome shared = train({.devices = 1, .mode = Mode::kAllreduce})[0];
  CHECK_FALSE(shared.on_device);
  CHECK(shared.digest == host.digest);
  const Outcome found = train({.devices = 2, .mode = Mode::kAllreduce})[0];
  CHECK(found.on_device);
  CHECK(found.digest == host.digest);
}

TEST_CASE("when one rank cannot open what it is lent, all ranks of the node go on in host memory") {
  const Outcome host = on_host(Mode::kSync);
  const auto found = train({.second_refuses = true});
  CHECK_FALSE(found[0].on_device);
  CHECK(found[0].restarts == 1);
  CHECK(found[1].restarts == 0);
  CHECK(contains(found[1].notes, "planned refusal of a mapping"));
  CHECK(found[0].digest == host.digest);
}

}  // namespace tributary::device_trainers_test

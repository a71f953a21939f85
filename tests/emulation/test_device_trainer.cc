// The built-in trainer on device memory, from the attach to the digest: its GPU code on the emulation of CUDA's
// runtime, a real session, attach server, lanes and device engine, on simulated devices whose memory is the host's.
//
// The emulated runtime has one thread, hence one rank per node runs on it; the other computes on the CPU in the same
// device memory.
#include <doctest/doctest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/files/digest.h"
#include "tests/emulation/cuda_emulation.h"
#include "tests/emulation/runtime/emulated_runtime.h"
#include "tests/unit/train/synthetic_images.h"
#include "tests/unit/worker/device/device_node_fixture.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"
#include "tests/unit/worker/welcoming_node.h"
#include "train/cuda_gemm.h"
#include "train/session_arrays.h"
#include "train/trainer.h"

namespace tributary::train {

// There is no cuBLAS to emulate.
Result<std::unique_ptr<CudaGemm>> make_cublas_gemm(const CudaDeviceName&, cudaStream_t) {
  return fail(ErrorCode::kNotFound, "cuBLAS cannot be loaded here");
}

namespace {

using testing::Devices;
using testing::FakeServerLane;
using testing::FakeTrainerDevice;
using testing::Runner;
using testing::WelcomingNode;

constexpr std::uint32_t kRanks = 2;

// What the emulated runtime may use of what the worker lends, to the byte.
class EmulatedOpener final : public FakeTrainerDevice {
 public:
  EmulatedOpener(std::shared_ptr<testing::FakeDeviceApi> api, std::size_t bytes)
      : FakeTrainerDevice(std::move(api), 0), bytes_(bytes) {}
  Result<void*> open(std::span<const std::byte> handle) override {
    auto opened = FakeTrainerDevice::open(handle);
    if (opened) emulation::lend(*opened, bytes_);
    return opened;
  }
  void close(void* memory) override {
    emulation::take_back(memory);
    FakeTrainerDevice::close(memory);
  }

 private:
  const std::size_t bytes_;
};

const ImageSet& training_set() {
  static const ImageSet kSet = synthetic(300, 1);
  return kSet;
}

struct Outcome {
  RunSummary summary;  // of the emulated rank
  std::string log;
  std::string other_digest;  // of the rank on the CPU
  bool other_on_device = false;
};

// A trainer as users write them, which computes on the CPU, in simulated device memory if that is lent.
void train_on_cpu(const TrainerOptions& options, Outcome& outcome) {
  auto plain = RankCompute::make(options.job, training_set(), kRanks);
  REQUIRE(plain);
  const std::vector<TensorSpec>& tensors = plain->shape().tensors();
  SessionOptions wanted;
  wanted.socket = options.socket;
  wanted.job = options.job;
  wanted.topology = options.topology;
  wanted.device = options.device_memory;
  auto session = Session::attach(wanted, tensors);
  REQUIRE_MESSAGE(session, session.error().message);
  REQUIRE((*session)->start());
  SessionArrays arrays;
  RankMemory memory = arrays.of(**session, tensors.size());
  outcome.other_on_device = memory.place == MemoryPlace::kDevice;
  memory.place = MemoryPlace::kHost;
  REQUIRE(plain->bind(memory));
  const Rank rank(options.topology.rank);
  const Round last = last_round(options.job.train, plain->sampler());
  for (Round round(1); round <= last; round = round.next()) {
    const auto stats = plain->gradient(round, rank, nullptr,
                                       [&](std::size_t t, std::uint64_t weight) { (*session)->ready(t, weight); });
    REQUIRE(stats);
    const auto state = (*session)->wait();
    REQUIRE(state);
    REQUIRE(*state == StepState::kContinue);
  }
  outcome.other_digest = parameters_digest(tensors, memory.parameters);
  CHECK((*session)->finish(LeaveKind::kFinished));
}

struct Case {
  std::uint32_t devices = 1;  // 0: the worker reduces on the host
  std::uint32_t seed = 2;
  bool second_refuses = false;  // to open what it is lent
  bool local_steps = false;
  bool allreduce = false;
};

Outcome train(const Case& what) {
  emulation::use({.seed = what.seed});
  emulation::start_runtime({.seed = what.seed});
  static const ImageSet kTest = synthetic(100, 2);
  TrainerOptions options;
  options.job.name = "lent";
  options.job.train.hidden = {128};
  options.job.train.global_batch = 32;
  options.job.train.epochs = 2;
  if (what.local_steps) {
    options.job.mode = Mode::kLocalSgd;
    options.job.local.steps = 3;
    options.job.local.optimizer.name = "adam";
    options.job.local.optimizer.lr = 0.003;
    options.job.train.epochs = 4;
  }
  if (what.allreduce) {
    options.job.mode = Mode::kAllreduce;
    options.job.optimizer.name = "sgd";
    options.job.optimizer.lr = 0.1;
  }
  options.topology = {.rank = 0, .world_size = kRanks, .local_rank = 0, .local_world_size = kRanks, .node_rank = 0};
  const auto emulated = [&] {
    auto made = RankCompute::make(options.job, training_set(), kRanks, {.kind = DeviceKind::kCuda, .why = {}});
    REQUIRE_MESSAGE(made, made.error().message);
    return std::move(*made);
  };
  Outcome outcome;
  Devices devices(what.devices);
  {
    const Runner runner(devices.api);
    FakeServerLane server;
    server.rate = what.local_steps ? 0.5f : 0.1f / 32.0f;  // of two replicas, or per sample
    WelcomingNode node(devices.node, server.endpoint());
    options.socket = node.socket();

    TrainerOptions other = options;
    other.topology.rank = other.topology.local_rank = 1;
    const auto opener = std::make_shared<FakeTrainerDevice>(devices.api, what.devices > 1 ? 1 : 0);
    opener->refuse = what.second_refuses;
    other.device_memory = opener;
    std::thread second([&] { train_on_cpu(other, outcome); });

    RankCompute compute = emulated();
    std::size_t elements = 0;
    for (const TensorSpec& tensor : compute.shape().tensors()) elements += (tensor.elements() + 15) / 16 * 16;
    options.device_memory = std::make_shared<EmulatedOpener>(devices.api, elements * sizeof(float));
    std::FILE* log = std::tmpfile();
    {
      ProgressBar bar(log, ProgressBar::Style::kOff, "");
      StopSignal none;
      const auto summary = train_rank(options, std::move(compute), &kTest, bar, nullptr, none);
      CHECK_MESSAGE(summary, summary.error().message);
      if (summary) outcome.summary = *summary;
    }
    second.join();
    outcome.log.resize(4096);
    std::rewind(log);
    outcome.log.resize(std::fread(outcome.log.data(), 1, outcome.log.size(), log));
    std::fclose(log);
    CHECK(opener->mapped == 0);
    CHECK(emulation::runtime_counts().alive == 0);
    options.device_memory.reset();
  }
  CHECK(devices.api->live() == testing::FakeDeviceApi::Live{});
  CHECK(devices.api->violations().empty());
  CHECK(outcome.summary.digest == outcome.other_digest);
  CHECK(outcome.summary.rounds == outcome.summary.last_round);
  return outcome;
}

TEST_CASE("ranks on device memory end in the bits of ranks that copy through the host, on one device and on two") {
  const Outcome host = train({.devices = 0});
  CHECK(host.summary.gradient_path == "host");
  REQUIRE(host.summary.test);
  CHECK(host.summary.test->accuracy() > 0.5);  // it did learn; chance is 0.1
  CHECK(host.log.find("gradient path: host") != std::string::npos);
  for (const std::uint32_t devices : {1u, 2u}) {
    for (const std::uint32_t seed : {0u, 1u, 2u, 3u}) {
      CAPTURE(devices);
      CAPTURE(seed);
      const Outcome found = train({.devices = devices, .seed = seed});
      CHECK(found.summary.gradient_path == "device");
      CHECK(found.other_on_device);
      CHECK(found.summary.digest == host.summary.digest);
      CHECK(found.summary.test->loss_sum == host.summary.test->loss_sum);
      CHECK(found.log.find("gradient path: device") != std::string::npos);
    }
  }
}

TEST_CASE("an all-reduce job over devices ends in the bits of one in host memory") {
  const Outcome host = train({.devices = 0, .allreduce = true});
  CHECK(host.summary.gradient_path == "host");
  REQUIRE(host.summary.test);
  CHECK(host.summary.test->accuracy() > 0.5);
  // Both ranks on one device: NCCL would refuse them.
  const Outcome shared = train({.devices = 1, .allreduce = true});
  CHECK(shared.summary.gradient_path == "host");
  CHECK(shared.summary.digest == host.summary.digest);
  for (const std::uint32_t seed : {0u, 1u, 2u, 3u}) {
    CAPTURE(seed);
    const Outcome found = train({.devices = 2, .seed = seed, .allreduce = true});
    CHECK(found.summary.gradient_path == "device");
    CHECK(found.other_on_device);
    CHECK(found.summary.digest == host.summary.digest);
  }
}

TEST_CASE("local steps on device memory end in the bits of those that copy through the host") {
  const Outcome host = train({.devices = 0, .local_steps = true});
  CHECK(host.summary.gradient_path == "host");
  REQUIRE(host.summary.test);
  CHECK(host.summary.test->accuracy() > 0.5);
  for (const std::uint32_t seed : {0u, 1u}) {
    const Outcome found = train({.devices = 1, .seed = seed, .local_steps = true});
    CHECK(found.summary.gradient_path == "device");
    CHECK(found.summary.digest == host.summary.digest);
  }
}

TEST_CASE("when one rank cannot open what it is lent, all ranks of the node copy through the host") {
  const Outcome host = train({.devices = 0});
  const Outcome found = train({.second_refuses = true});
  CHECK(found.summary.gradient_path == "host");
  CHECK_FALSE(found.other_on_device);
  CHECK(found.summary.restarts == 1);
  CHECK(found.log.find("planned refusal of a mapping") != std::string::npos);
  CHECK(found.summary.digest == host.summary.digest);
}

}  // namespace
}  // namespace tributary::train

// An all-reduce job over real devices: one rank on the first of them, through NCCL all the same. Everything from the
// lane to the kernels is what several nodes run.
#include <cuda_runtime_api.h>

#include "kernels/cuda_copy.h"
#include "tests/gpu/required_library.h"
#include "tests/unit/required.h"
#include "tests/unit/stepping_optimizers.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/worker/allreduce/allreduce_fixture.h"
#include "worker/allreduce/device_exchange.h"
#include "worker/device/cuda_device_api.h"

using namespace tributary;
using namespace tributary::testing;

namespace {

// Null: this machine has no NCCL, which one device does not need.
std::shared_ptr<DeviceApi> device_with_nccl() {
  static const auto api = make_cuda_device_api();
  REQUIRE_MESSAGE(api.has_value(), (api ? "" : api.error().message));
  const auto version = (*api)->collectives_version();
  if (version) {
    MESSAGE(*version);
    return *api;
  }
  skip_without("nccl", version.error());
  return nullptr;
}

ClusterOptions one_rank(std::shared_ptr<DeviceApi> api) {
  ClusterOptions options{.nodes = 1, .ranks = 1};
  options.devices = std::move(api);
  options.always_collectives = true;
  options.copy = [](void* to, const void* from, std::size_t bytes) {
    REQUIRE(kernels::cuda::copy_and_wait(to, from, bytes) == cudaSuccess);
  };
  return options;
}

}  // namespace

TEST_CASE("one rank goes through NCCL to the servers' bits, with every optimizer") {
  const auto api = device_with_nccl();
  if (!api) return;
  for (const char* algorithm : {"flat", "hierarchical"}) {
    for (const std::string& optimizer : stepping_optimizers()) {
      CAPTURE(optimizer);
      ClusterOptions options = one_rank(api);
      options.algorithm = algorithm;
      options.optimizer = optimizer;
      check_against_servers(options, true);
    }
  }
}

TEST_CASE("a job on a device keeps its state and goes on from it") {
  const auto api = device_with_nccl();
  if (!api) return;
  TempDir directory;
  ClusterOptions options = one_rank(api);
  options.store = directory.path();
  options.snapshot = {0, 2};
  said_at_the_end(options);
  options.start = Round(3);
  AllreduceCluster cluster(options);
  cluster.resume(6);
  ServerReference servers(options);
  servers.rounds(6, 1);
  CHECK(same_bits(cluster.parameters(0), servers.parameters()));
  cluster.end();
}

TEST_CASE("a communicator that nobody else joins is given up in time, and the device works on") {
  const auto api = device_with_nccl();
  if (!api) return;
  AllreducePlan plan;
  plan.node.layout = std::make_shared<const Layout>(cluster_layout(2048));
  plan.node.devices = {DeviceIndex(0)};
  plan.node.position_of_rank = {0};
  plan.nodes = 2;
  struct Output final : BucketOutput {
    SaidSettings settings(ChunkIndex) const override { return {}; }
    bool wants(ChunkIndex, Round) override { return false; }
    void capture(ChunkIndex, Round, const float*, std::span<const float* const>, std::uint64_t) override {}
    void stepped(ChunkIndex, Round) override {}
    Error replicas_differ(Round) override { return {}; }
    void exchange_failed(const std::string&, const Error&) override {}
  } output;
  const auto view = cluster_view({.optimizer = "sgd"});
  auto devices =
      AllreduceDevices::create(api, plan, static_cast<std::uint32_t>(view->plan->optimizer->slots()), 500'000'000);
  REQUIRE(devices);
  auto logger = quiet_logger();
  {
    DeviceExchange exchange(*devices, *view, output, logger);
    Addresses addresses;
    REQUIRE(exchange.open(nullptr, addresses));
    const auto key = required(api->make_comm_key());
    const Status connected = exchange.connect({&key, 1});
    REQUIRE_FALSE(connected);
    CHECK(connected.error().message.find("took longer than 500 ms") != std::string::npos);
  }
  devices->reset();
  check_against_servers(one_rank(api), true);
}

// All-reduce lanes whose ranks are on devices: as test_allreduce_lane.cc, with NCCL (simulated) in the place of Gloo's
// rings.
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/stepping_optimizers.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/worker/allreduce/allreduce_fixture.h"
#include "tests/unit/worker/device/device_node_fixture.h"
#include "worker/allreduce/replica_checkpoints.h"

namespace tributary::allreduce_on_devices_test {

using namespace testing;

namespace {

struct OnDevices {
  explicit OnDevices(ClusterOptions wanted, FakeFaults faults = {}) : options(std::move(wanted)) {
    api = std::make_shared<FakeDeviceApi>(
        FakeDeviceOptions{.devices = options.nodes * options.ranks, .faults = std::move(faults)});
    options.devices = api;
    runner.emplace(api);
  }
  ~OnDevices() {
    runner.reset();
    CHECK(eventually([&] { return api->live() == FakeDeviceApi::Live{}; }));
    for (const std::string& violation : api->violations()) FAIL_CHECK(violation);
  }
  ClusterOptions options;
  std::shared_ptr<FakeDeviceApi> api;
  std::optional<Runner> runner;
};

// The fake adds in the order of ranks.
void check_on_devices(const ClusterOptions& wanted, bool exact) {
  const OnDevices on(wanted);
  check_against_servers(on.options, exact);
  CHECK(on.api->collectives() > 0);
}

}  // namespace

TEST_CASE("two ranks on devices have the servers' bits") {
  for (const std::string& optimizer : stepping_optimizers()) {
    check_on_devices({.nodes = 2, .ranks = 1, .optimizer = optimizer}, true);
  }
  check_on_devices({.nodes = 1, .ranks = 2}, true);
  check_on_devices({.nodes = 1, .ranks = 2, .algorithm = "flat"}, true);
  check_on_devices({.nodes = 2, .ranks = 2}, true);  // in the node first, as the tree has it
}

TEST_CASE("more ranks on devices add in another order") {
  check_on_devices({.nodes = 2, .ranks = 2, .algorithm = "flat"}, false);
  check_on_devices({.nodes = 3, .ranks = 2}, false);
}

TEST_CASE("a node whose trainers have finished keeps its communicators until all others have") {
  const OnDevices on({.nodes = 3});
  AllreduceCluster cluster(on.options);
  cluster.start();
  cluster.train(1, 2);
  cluster.node(2).lane->close(cluster.node(2).job, true);
  cluster.ready_node(0, 3);
  cluster.ready_node(1, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(cluster.no_failures());
  CHECK(on.api->aborted() == 0);
  CHECK(cluster.node(2).lane->jobs_keeping() == 1);
  cluster.node(0).lane->close(cluster.node(0).job, true);
  cluster.node(1).lane->close(cluster.node(1).job, true);
  for (std::uint32_t n = 0; n < 3; ++n) cluster.node(n).job.reset();
  CHECK(cluster.memory_comes_back());
  CHECK(cluster.no_failures());
  CHECK(on.api->aborted() == 3);
}

TEST_CASE("a job on devices goes on from its checkpoint, on devices or on the host") {
  for (const bool devices_again : {true, false}) {
    CAPTURE(devices_again);
    TempDir directory;
    const OnDevices on({.nodes = 2, .ranks = 2, .store = directory.path()});
    said_at_the_end(on.options);
    ClusterOptions options = on.options;
    options.start = Round(3);
    if (!devices_again) options.devices = nullptr;
    AllreduceCluster cluster(options);
    cluster.resume(6);
    ServerReference servers(options);
    servers.rounds(6, 4);
    for (std::uint32_t n = 0; n < 2; ++n) CHECK(same_bits(cluster.parameters(n), servers.parameters()));
    cluster.end();
  }
}

TEST_CASE("checkpoints of jobs on devices are taken while training goes on, and hold one round each") {
  TempDir directory;
  const OnDevices on({.nodes = 2, .ranks = 2, .snapshot = {0, 2}, .store = directory.path()});
  AllreduceCluster cluster(on.options);
  cluster.start();
  ServerReference servers(on.options);
  const Layout layout = cluster_layout(on.options.chunk_elements);
  const ReplicaCheckpoints checkpoints(directory.path(), cluster_config(on.options), layout);
  std::vector<std::vector<float>> after{servers.parameters()};  // by round
  Round newest;
  for (std::uint64_t round = 1; newest.value == 0 || newest.value + 4 > round; ++round) {
    REQUIRE(round < 1000);
    cluster.train(round, round);
    servers.round(round, 4, 4);
    after.push_back(servers.parameters());
    const auto found = required(checkpoints.newest());
    if (found == newest) continue;
    newest = found;
    check_checkpoint(on.options, newest, after[newest.value]);
    if (round > 20) break;
  }
  cluster.end();
}

TEST_CASE("a replica on devices that is not the others' any more is noticed, and ends the view on all nodes") {
  for (const char* algorithm : {"hierarchical", "flat"}) {
    const OnDevices on({.nodes = 2, .ranks = 2, .algorithm = algorithm});
    check_that_other_bits_are_noticed(on.options);
  }
}

TEST_CASE("a lost node ends the view of a job on devices, and what hangs is aborted") {
  const OnDevices on({.nodes = 2});
  AllreduceCluster cluster(on.options);
  cluster.start();
  cluster.train(1, 1);
  cluster.ready_node(0, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  cluster.node(1).lane->close(cluster.node(1).job, false);
  const LaneFailure failure = cluster.node(0).failures.await();
  CHECK(failure.kind == LaneFailure::Kind::kViewOver);
  CHECK(contains(failure.error.message, "node 0 of 2"));
  cluster.end();
  CHECK(on.api->aborted() == 2);
}

TEST_CASE("an error of NCCL ends the view with its words, on the node that has it") {
  FakeFaults faults{.collective = FakeFaults::Collective::kFailsAsync, .at = 5, .position = 1};
  const OnDevices on({.nodes = 2}, faults);
  AllreduceCluster cluster(on.options);
  cluster.start();
  cluster.ready_all(1);
  const LaneFailure failure = cluster.node(1).failures.await();
  CHECK(failure.kind == LaneFailure::Kind::kRefused);
  CHECK(failure.error.code == ErrorCode::kDevice);
  CHECK(contains(failure.error.message, "node 1 of 2, summing: all-reduce over GPUs failed: device 0 (fake:1"));
  cluster.end();
}

TEST_CASE("nodes that do not find each other through NCCL are told in time") {
  FakeFaults faults;
  faults.communicators_hang = true;
  const OnDevices on({.nodes = 2, .timeout_ms = 300}, faults);
  AllreduceCluster cluster(on.options);
  cluster.open();
  const LaneFailure failure = cluster.node(0).failures.await();
  CHECK(contains(failure.error.message, "took longer than 300 ms"));
  cluster.end();
}

TEST_CASE("a view on devices that ends while it is being opened gives everything back") {
  struct Moment {
    const char* name;
    bool all_nodes, communicators_hang;
  };
  for (const Moment& moment :
       {Moment{"before the other node is there", false, false}, Moment{"while communicators connect", true, true},
        Moment{"before the initial values are there", true, false}}) {
    CAPTURE(moment.name);
    FakeFaults faults;
    faults.communicators_hang = moment.communicators_hang;
    const OnDevices on({.nodes = 2}, faults);
    AllreduceCluster cluster(on.options);
    cluster.open([&](std::uint32_t n) { return n == 0 || moment.all_nodes; });
    if (moment.all_nodes) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    cluster.end();
    CHECK(cluster.no_failures());
  }
}

}  // namespace tributary::allreduce_on_devices_test

// Groups of collectives and memory keep out of each other's way.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/fake_device/fake_device_api.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/allreduce/allreduce_engine_fixture.h"
#include "worker/device/device_blocks.h"
#include "worker/device/launch_gate.h"

namespace tributary::launch_gate_test {
namespace {

using std::chrono::milliseconds;

bool becomes(const std::atomic<bool>& value) {
  for (int i = 0; i < 10'000 && !value; ++i) std::this_thread::sleep_for(milliseconds(1));
  return value;
}

TEST_CASE("memory waits for all groups that are half launched, and later groups for memory") {
  LaunchGate gate;
  LaunchGate::Hold first = gate.launch(), second = gate.launch();
  std::atomic<bool> got = false, third = false, let_go = false;
  std::jthread memory([&] {
    const LaunchGate::Hold hold = gate.memory();
    got = true;
    while (!let_go) std::this_thread::sleep_for(milliseconds(1));
  });
  first.let_go();
  std::this_thread::sleep_for(milliseconds(50));
  CHECK_FALSE(got);
  second.let_go();
  CHECK(becomes(got));
  std::jthread launch([&] {
    const LaunchGate::Hold hold = gate.launch();
    third = true;
  });
  std::this_thread::sleep_for(milliseconds(50));
  CHECK_FALSE(third);
  let_go = true;
  CHECK(becomes(third));
}

TEST_CASE("whoever wants memory is not passed by one group after another") {
  LaunchGate gate;
  std::atomic<bool> got = false, over = false;
  std::vector<std::jthread> engines;
  for (int i = 0; i < 3; ++i) {
    engines.emplace_back([&] {
      while (!over) {
        const LaunchGate::Hold hold = gate.launch();
        std::this_thread::sleep_for(milliseconds(2));
      }
    });
  }
  std::this_thread::sleep_for(milliseconds(10));
  std::jthread memory([&] {
    const LaunchGate::Hold hold = gate.memory();
    got = true;
  });
  for (int i = 0; i < 1000 && !got; ++i) std::this_thread::sleep_for(milliseconds(1));
  CHECK(got);
  over = true;
}

TEST_CASE("a hold that is moved is let go once, where it ended up") {
  LaunchGate gate;
  {
    LaunchGate::Hold kept;
    {
      LaunchGate::Hold hold = gate.launch();
      kept = std::move(hold);
    }
    kept = LaunchGate::Hold();
  }
  const LaunchGate::Hold hold = gate.memory();  // at once
}

TEST_CASE("a job's memory is not taken or given back while a group is half launched") {
  testing::FakeDeviceApi api({.devices = 1, .settle_ns = 100'000'000});
  float* values = nullptr;
  auto blocks = std::make_unique<DeviceBlocks>(api);
  {
    const auto block = required(blocks->take(DeviceIndex(0), 4096, "test"));
    values = static_cast<float*>(block);
  }
  auto other = std::make_unique<DeviceBlocks>(api);
  REQUIRE(other->take_pinned(DeviceIndex(0), 4096, "test"));
  const StreamId stream = *api.create_stream(DeviceIndex(0), "s");
  const DeviceIndex device(0);
  const CommId comm = (*api.create_comms({&device, 1}))[0];
  while (!*api.comm_settled(comm)) {
  }
  LaunchGate::Hold launch = api.launches().launch();
  REQUIRE(api.group_start());
  REQUIRE(api.all_reduce(comm, stream, values, 8));
  REQUIRE(api.group_end());
  SUBCASE("by whoever does not ask: the fake finds it") {
    std::vector<std::byte> memory(64);
    REQUIRE(api.pin(device, memory, "test"));
    api.unpin(memory);
    CHECK(api.violations().size() == 2);
  }
  SUBCASE("by DeviceBlocks") {
    std::jthread ends([&] { other.reset(); });
    std::jthread begins([&] {
      DeviceBlocks more(api);
      CHECK(more.take(DeviceIndex(0), 64, "test"));
      CHECK(more.take_pinned(DeviceIndex(0), 64, "test"));
    });
    while (!*api.comm_settled(comm)) std::this_thread::sleep_for(milliseconds(1));
    launch.let_go();
    ends.join();
    begins.join();
    CHECK(api.violations().empty());
  }
  while (!*api.comm_settled(comm)) std::this_thread::sleep_for(milliseconds(1));
  launch.let_go();
  api.run_all();
  REQUIRE(*api.idle(stream));
}

TEST_CASE("communicators within a node hold back groups until they are connected, those between nodes do not") {
  testing::EngineSetup setup{.nodes = 1, .devices = 2, .timeout_ms = 60'000};
  std::uint64_t in_node = 1;  // calls that make communicators
  SUBCASE("of one node") {}
  SUBCASE("of one node, over all its devices") {
    setup.algorithm = "flat";
  }
  SUBCASE("of two nodes, the other of which does not come") {
    setup.nodes = 2;
  }
  SUBCASE("of two nodes, without any within a node") {
    setup.nodes = 2;
    setup.algorithm = "flat";
    in_node = 0;
  }
  testing::EngineCluster cluster(setup);
  LaunchGate& gate = cluster.api->launches();
  cluster.api->let_connect(0);
  CHECK_FALSE(cluster.connect([](std::uint32_t node) { return node == 0; }));
  std::atomic<bool> launched = false;
  std::jthread launch([&] {
    const LaunchGate::Hold hold = gate.launch();
    launched = true;
  });
  if (in_node != 0) {
    std::this_thread::sleep_for(milliseconds(50));
    CHECK_FALSE(launched);
  }
  cluster.api->let_connect(in_node);
  REQUIRE(cluster.until([&] { return launched || cluster.failed(); }, 20'000'000));
  CHECK_FALSE(cluster.failed());
  launch.join();
  cluster.close();
}

}  // namespace
}  // namespace tributary::launch_gate_test

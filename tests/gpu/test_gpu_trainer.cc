// Trainers on the first device of this machine, each a process of its own, and a worker that lends them its memory by
// CUDA IPC. Without a device every case fails and says why. (tests/emulation/test_device_trainer.cc has the same
// without a device: bits, orders, and a rank that cannot open what it is lent.)
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/daemon/log.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/train/synthetic_images.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"
#include "tests/unit/worker/welcoming_node.h"
#include "train/trainer.h"
#include "worker/device/cuda_device_api.h"

namespace tributary::train {
namespace {

using testing::FakeServerLane;
using testing::TempDir;
using testing::WelcomingNode;

std::shared_ptr<NodeDevices> worker_on(const std::string& reduction) {
  WorkerConfig config;
  config.node_reduction = choice_of<NodeReduction>(reduction).value();
  const auto logger = quiet_logger();
  if (reduction == "host") return std::make_shared<NodeDevices>(config, nullptr, "not asked for", logger);
  static const auto api = make_cuda_device_api();
  REQUIRE_MESSAGE(api.has_value(), (api ? "" : api.error().message));
  return std::make_shared<NodeDevices>(config, *api, "", logger);
}

// What each rank's process says in the end.
std::vector<nlohmann::json> train(const std::string& reduction, std::uint32_t ranks) {
  CAPTURE(reduction);
  CAPTURE(ranks);
  FakeServerLane server;
  server.rate = 0.1f / 64.0f;
  WelcomingNode node(worker_on(reduction), server.endpoint());
  const TempDir results;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<FILE*> children;
  const auto result_of = [&](std::uint32_t rank) { return results / ("rank-" + std::to_string(rank)); };
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    children.push_back(::popen(("'" + self + "' --no-skip --test-case='one rank of a job'").c_str(), "w"));
    REQUIRE(children.back());
    std::fprintf(children.back(), "%s %s %u %u\n", node.socket().c_str(), result_of(rank).c_str(), rank, ranks);
    std::fflush(children.back());
  }
  bool passed = true;
  for (FILE* child : children) passed = ::pclose(child) == 0 && passed;
  REQUIRE(passed);
  std::vector<nlohmann::json> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::ifstream in(result_of(rank));
    all.push_back(nlohmann::json::parse(in));
    CHECK(all.back().at("device").get<std::string>().starts_with("cuda:0 "));
    CHECK(all.back().at("digest") == all.front().at("digest"));
    CHECK(all.back().at("rounds") == all.back().at("last_round"));
  }
  return all;
}

TEST_CASE("processes train in memory that the worker lends, always to the same bits, as well as through the host") {
  for (const std::uint32_t ranks : {1u, 2u}) {
    const auto host = train("host", ranks), device = train("device", ranks), again = train("device", ranks);
    for (const auto& rank : host) CHECK(rank.at("gradient_path") == "host");
    for (const auto& rank : device) CHECK(rank.at("gradient_path") == "device");
    CHECK(device[0].at("digest") == again[0].at("digest"));
    const double found = device[0].at("test_accuracy"), expected = host[0].at("test_accuracy");
    CHECK(std::abs(found - expected) <= 0.01);
    CHECK(found > 0.5);  // it did learn; chance is 0.1
    // Products may be computed in another order where matrices are aligned otherwise.
    MESSAGE("the bits are " << (device[0].at("digest") == host[0].at("digest") ? "" : "not ")
                            << "those of the path through the host");
  }
}

// Started by the case above, with its part on standard input.
TEST_CASE("one rank of a job" * doctest::skip()) {
  TrainerOptions options;
  std::string result;
  std::cin >> options.socket >> result >> options.topology.rank >> options.topology.world_size;
  REQUIRE(std::cin.good());
  options.topology.local_rank = options.topology.rank;
  options.topology.local_world_size = options.topology.world_size;
  options.job.name = "lent";
  options.job.train.hidden = {512, 256};
  options.job.train.global_batch = 64;
  options.job.train.epochs = 4;
  options.device.kind = DeviceKind::kCuda;
  const ImageSet training = synthetic(2000, 1), test = synthetic(500, 2);
  ProgressBar bar(stderr, ProgressBar::Style::kOff, "");
  StopSignal stop_signal;
  const auto summary =
      train_rank(options, training, options.topology.rank == 0 ? &test : nullptr, bar, nullptr, stop_signal);
  REQUIRE_MESSAGE(summary, summary.error().message);
  std::ofstream(result) << to_json(*summary);
}

}  // namespace
}  // namespace tributary::train

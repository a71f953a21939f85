// Fashion-MNIST itself, over whole trainings: what encodings and local steps cost in accuracy, and that all-reduce
// costs nothing.
#include <cmath>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::accuracy_test {
namespace {

// Half of the files' epochs: enough to tell the ways apart.
const std::vector<std::string> kHalf = {"train.epochs=4", "schedule.total_rounds=940"};

double test_accuracy(const TempDir& dir, const std::string& config, const std::vector<std::string>& overrides = {}) {
  const std::string log = dir / "train.log";
  std::filesystem::remove(log);
  std::vector<std::string> argv = {bin("tributary-train"),
                                   "--job",
                                   std::string(TRIBUTARY_SOURCE_DIR) + "/configs/" + config,
                                   "--standalone",
                                   "--ranks",
                                   "4",
                                   "--nodes",
                                   "2",
                                   "--json",
                                   "--quiet"};
  for (const std::string& assignment : kHalf) argv.insert(argv.end(), {"--set", assignment});
  for (const std::string& assignment : overrides) argv.insert(argv.end(), {"--set", assignment});
  auto process = required(Process::spawn({.argv = argv, .log_file = log}));
  const auto status = required(process.wait(seconds(300)));
  INFO(last_lines(log, 15));
  REQUIRE(status.ok());
  Trainer trainer;
  trainer.log_file = log;
  return nlohmann::json::parse(trainer_result(trainer)).at("test_accuracy");
}

// On daemons of its own; without servers: all-reduce.
nlohmann::json trained(const std::string& base_dir, std::uint16_t servers, const std::string& config,
                       std::vector<std::string> overrides = {}) {
  ClusterOptions options = options_in(base_dir);
  options.fresh = true;
  options.servers = servers;
  options.nodes = options.ranks_per_node = 2;
  const auto cluster = start(options);
  overrides.insert(overrides.end(), kHalf.begin(), kHalf.end());
  start_trainers(*cluster, std::string(TRIBUTARY_SOURCE_DIR) + "/configs/" + config, overrides);
  finish_training(*cluster, seconds(300));
  CHECK(cluster->stop().empty());
  const auto all = results(*cluster);
  return all[0];
}

// One case, because all ways are held against the same synchronous training.
TEST_CASE("Fashion-MNIST trains to the accuracy of synchronous rounds, whatever the mode and the encoding") {
  const TempDir dir;
  const auto sync = trained(dir / "run", 1, "fashion-mnist.toml");
  const double accuracy = sync.at("test_accuracy");
  CHECK(accuracy > 0.88);
  const auto near = [&](const char* way, double other, double most) {
    MESSAGE(std::string(way) << " " << other << ", sync " << accuracy);
    CHECK(std::fabs(other - accuracy) <= most);
  };

  // All-reduce. Two nodes add in one order only.
  const auto nodes = trained(dir / "run", 0, "fashion-mnist-allreduce.toml");
  CHECK(nodes.at("digest") == sync.at("digest"));
  const auto flat = trained(dir / "run", 0, "fashion-mnist-allreduce.toml", {"allreduce.algorithm=\"flat\""});
  near("all-reduce over 4 ranks", flat.at("test_accuracy"), 0.003);

  // Nodes at their own clocks, within a bound.
  const auto ssp = trained(dir / "run", 2, "fashion-mnist-ssp.toml");
  CHECK(ssp.at("test_accuracy").get<double>() > 0.88);
  CHECK(ssp.at("staleness").at("max").get<std::uint64_t>() <= 3);

  // 50 local steps, with at most a 40th of the bytes.
  const auto local = trained(dir / "run", 1, "fashion-mnist-diloco.toml");
  const auto bytes = [](const nlohmann::json& rank) {
    return rank.at("bytes_pushed").get<double>() + rank.at("bytes_pulled").get<double>();
  };
  CHECK(sync.at("samples") == local.at("samples"));
  near("50 local steps", local.at("test_accuracy"), 0.01);
  CHECK(bytes(sync) >= 40.0 * bytes(local));

  // Encodings, in one process.
  const std::vector<std::string> int8 = {"encoding.push=\"int8\"", "encoding.pull=\"int8-delta\""};
  near("int8", test_accuracy(dir, "fashion-mnist.toml", int8), 0.005);
  near("onebit", test_accuracy(dir, "fashion-mnist-onebit.toml"), 0.01);
  near("topk", test_accuracy(dir, "fashion-mnist-topk.toml"), 0.01);
}

}  // namespace
}  // namespace tributary::e2e::accuracy_test

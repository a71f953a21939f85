// Fashion-MNIST itself, over whole trainings: what encodings and local steps cost in accuracy, and that all-reduce
// costs nothing.
#include <cmath>

#include "tests/e2e/e2e.h"

namespace tributary::e2e::accuracy_test {
namespace {

double test_accuracy(const TempDir& dir, const std::string& config, std::vector<std::string> overrides = {}) {
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
  for (const std::string& assignment : overrides) argv.insert(argv.end(), {"--set", assignment});
  auto process = Process::spawn({.argv = argv, .log_file = log, .environment = {{"OMP_NUM_THREADS", "1"}}});
  REQUIRE_MESSAGE(process, process.error().message);
  const auto status = process->wait(seconds(300));
  REQUIRE(status);
  INFO(last_lines(log, 15));
  REQUIRE(status->ok());
  Trainer trainer;
  trainer.log_file = log;
  return nlohmann::json::parse(trainer_result(trainer)).at("test_accuracy");
}

// On daemons of its own; without servers: all-reduce.
nlohmann::json trained(const std::string& base_dir, std::uint16_t servers, const std::string& config,
                       const std::vector<std::string>& overrides) {
  ClusterOptions options = options_in(base_dir);
  options.fresh = true;
  options.servers = servers;
  options.nodes = options.ranks_per_node = 2;
  const auto cluster = start(options);
  start_trainers(*cluster, std::string(TRIBUTARY_SOURCE_DIR) + "/configs/" + config, overrides);
  finish_training(*cluster, seconds(300));
  CHECK(cluster->stop().empty());
  const auto all = results(*cluster);
  return all[0];
}

TEST_CASE("all-reduce trains to the accuracy of the same job on servers: flat over 4 ranks, and hierarchical 2 x 2") {
  const TempDir dir;
  const auto hybrid = trained(dir / "run", 1, "fashion-mnist.toml", {});
  const auto nodes = trained(dir / "run", 0, "fashion-mnist-allreduce.toml", {});
  const auto flat = trained(dir / "run", 0, "fashion-mnist-allreduce.toml", {"allreduce.algorithm=\"flat\""});
  MESSAGE("hybrid " << hybrid.at("test_accuracy") << ", hierarchical " << nodes.at("test_accuracy") << ", flat "
                    << flat.at("test_accuracy"));
  CHECK(hybrid.at("test_accuracy").get<double>() > 0.88);
  CHECK(nodes.at("digest") == hybrid.at("digest"));  // two nodes: there is only one order
  CHECK(std::fabs(flat.at("test_accuracy").get<double>() - hybrid.at("test_accuracy").get<double>()) <= 0.003);
}

TEST_CASE("nodes that go at their own clocks, within a bound, train to the accuracy of synchronous rounds") {
  const TempDir dir;
  const auto ssp = trained(dir / "run", 2, "fashion-mnist-ssp.toml", {});
  MESSAGE("ssp " << ssp.at("test_accuracy") << ", staleness " << ssp.at("staleness"));
  CHECK(ssp.at("test_accuracy").get<double>() > 0.88);
  CHECK(ssp.at("staleness").at("max").get<std::uint64_t>() <= 3);
}

TEST_CASE("50 local steps train to the accuracy of sync within a point, with at most a 40th of the bytes") {
  const TempDir dir;
  const auto sync = trained(dir / "run", 1, "fashion-mnist.toml", {});
  const auto local = trained(dir / "run", 1, "fashion-mnist-diloco.toml", {});
  const auto bytes = [](const nlohmann::json& rank) {
    return rank.at("bytes_pushed").get<double>() + rank.at("bytes_pulled").get<double>();
  };
  MESSAGE("sync " << sync.at("test_accuracy") << ", 50 local steps " << local.at("test_accuracy") << " with 1/"
                  << bytes(sync) / bytes(local) << " of the bytes");
  CHECK(sync.at("samples") == local.at("samples"));
  CHECK(sync.at("test_accuracy").get<double>() > 0.88);
  CHECK(std::fabs(local.at("test_accuracy").get<double>() - sync.at("test_accuracy").get<double>()) <= 0.01);
  CHECK(bytes(sync) >= 40.0 * bytes(local));
}

TEST_CASE("8-bit encodings cost no accuracy, 1-bit and the largest 1 percent less than a point") {
  const TempDir dir;
  const double fp32 = test_accuracy(dir, "fashion-mnist.toml");
  CHECK(fp32 > 0.88);
  const double int8 =
      test_accuracy(dir, "fashion-mnist.toml", {"encoding.push=\"int8\"", "encoding.pull=\"int8-delta\""});
  const double onebit = test_accuracy(dir, "fashion-mnist-onebit.toml");
  const double topk = test_accuracy(dir, "fashion-mnist-topk.toml");
  MESSAGE("fp32 " << fp32 << ", int8 " << int8 << ", onebit " << onebit << ", topk " << topk);
  CHECK(std::fabs(int8 - fp32) < 0.005);
  CHECK(std::fabs(onebit - fp32) < 0.01);
  CHECK(std::fabs(topk - fp32) < 0.01);
}

}  // namespace
}  // namespace tributary::e2e::accuracy_test

// Elastic jobs: nodes join, leave and are lost while real daemons train.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/tool_call.h"

namespace tributary::elastic_test {

using namespace e2e;

namespace {

constexpr const char* kContinue = "[membership]\non_worker_loss = \"continue\"\n";

// The trainers of some nodes, which are told that there are `world_nodes` (0: all). A sample takes 20 us asleep, so
// that a round lasts a millisecond on any machine, and others have time to come and go.
void start_nodes(LocalCluster& cluster, const std::string& job_file, std::vector<std::uint32_t> nodes,
                 std::uint32_t world_nodes = 0) {
  const auto started = cluster.start_trainers(
      {.command = cluster.train_command(job_file, {}, {"--json", "--quiet", "--slow-us-per-sample", "20"}),
       .progress_socket = {},
       .nodes = std::move(nodes),
       .world_nodes = world_nodes});
  REQUIRE_MESSAGE(started, started.error().message);
}

// Returns the tool's report, with slow rounds: nodes need seconds to join.
nlohmann::json bench_elastic(const TempDir& dir, const std::string& job_file, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {"bench", "elastic", job_file, "--json", "--us-per-sample", "250", "--base-dir", dir / "run"});
  return report_of(dir, arguments, seconds(240));
}

}  // namespace

TEST_CASE("two nodes become four and then three without a stop, and every round has its whole batch") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "elastic", .chunk_bytes = 8192, .rounds = 2400});
  const auto result = bench_elastic(dir, job_file, {"--nodes", "2,4,3"});
  CHECK(result.at("rounds") == 2400);
  const auto phases = result.at("phases");
  REQUIRE(phases.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(phases[i].at("world_size") == std::vector<int>{2, 4, 3}[i]);
    CHECK(phases[i].at("rounds").get<int>() > 50);  // of 800, less what went on until the nodes had joined
  }
  const auto coverage = result.at("coverage");
  // A rank's report is lost if nobody takes it soon; reports that arrive must be right.
  CHECK(coverage.at("rounds_whole").get<int>() >= 1200);
  CHECK(coverage.at("rounds_wrong") == 0);
  CHECK(coverage.at("rounds_dealt_twice").get<int>() <= 4);
  CHECK(result.at("test_accuracy").get<double>() ==
        doctest::Approx(result.at("fixed").at("test_accuracy").get<double>()).epsilon(0.06));
}

TEST_CASE("phases with as many nodes as before change nothing, and a node that left comes back") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "back", .chunk_bytes = 8192, .rounds = 2000});
  const auto result = bench_elastic(dir, job_file, {"--nodes", "2,2,1,2", "--only"});
  CHECK(result.at("rounds") == 2000);
  REQUIRE(result.at("phases").size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(result.at("phases")[i].at("world_size") == std::vector<int>{2, 2, 1, 2}[i]);
  }
  CHECK(result.at("coverage").at("rounds_wrong") == 0);
  CHECK(result.at("coverage").at("rounds_whole").get<int>() >= 1000);
}

TEST_CASE("a node that is killed is left behind, and comes back in a later view") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "spot", .chunk_bytes = 8192, .rounds = 8000, .extra = kContinue});
  const auto cluster = start(spread(dir / "run", {.ranks_per_node = 1}));
  start_nodes(*cluster, job_file, {0, 1});
  wait_for(*cluster, "min_version", 50);
  // Node 0 has the lowest rank: who stays takes its place.
  cluster->trainers()[0].process.terminate(milliseconds(0));
  cluster->workers()[0].process.terminate(milliseconds(0));
  REQUIRE(eventually([&] { return job_number(*cluster, "nodes") == 1; }));
  const std::uint64_t alone = job_number(*cluster, "min_version");
  REQUIRE(eventually([&] { return job_number(*cluster, "min_version") >= alone + 200; }));
  CHECK(cluster->trainers()[1].process.running());

  const auto restarted = cluster->restart(cluster->workers()[0]);
  REQUIRE_MESSAGE(restarted, restarted.error().message);
  const auto again = cluster->restart_trainer(0);
  REQUIRE_MESSAGE(again, again.error().message);
  REQUIRE(eventually([&] { return job_number(*cluster, "nodes") == 2; }));
  const auto all = finished(*cluster);
  CHECK(all[0].at("rounds") == 8000);
  CHECK(all[0].at("resumed_from").get<std::uint64_t>() >= alone);
  CHECK(all[1].at("resumed_from") == 0);
  CHECK(cluster->stop().empty());
}

TEST_CASE("a node that does not fit is told why, and the others do not notice") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "calm", .chunk_bytes = 8192, .rounds = 5000, .extra = kContinue});
  const auto cluster = start(spread(dir / "run", {.ranks_per_node = 1, .servers = 1}));
  start_nodes(*cluster, job_file, {0}, 1);
  wait_for(*cluster, "min_version", 20);
  const auto other = cluster->start_trainers(
      {.command = cluster->train_command(job_file, {"train.hidden=[32]"}, {"--json", "--quiet"}),
       .progress_socket = {},
       .nodes = {1},
       .world_nodes = 2});
  REQUIRE_MESSAGE(other, other.error().message);
  const auto status = cluster->trainers()[1].process.wait(kPatience);
  REQUIRE(status);
  CHECK_FALSE(status->ok());
  CHECK(last_lines(cluster->trainers()[1].log_file, 5).find("tensors") != std::string::npos);
  REQUIRE(cluster->trainers()[0].process.wait(kPatience));
  const auto result = nlohmann::json::parse(trainer_result(cluster->trainers()[0]));
  CHECK(result.at("restarts") == 0);
  CHECK(result.at("rounds") == 5000);
  cluster->stop();
}

}  // namespace tributary::elastic_test

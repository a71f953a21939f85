// Late nodes: work-weighted rounds, and reports of stragglers, with real daemons.
#include "tests/e2e/e2e.h"

namespace tributary::e2e::late_nodes_test {
namespace {

ClusterOptions three_nodes(const TempDir& dir) {
  ClusterOptions options = options_in(dir / "run");
  options.servers = 2;
  options.nodes = 3;
  return options;
}

std::uint64_t number(const nlohmann::json& json, const char* key) {
  return json.at(key).get<std::uint64_t>();
}

// us_per_sample: that the nodes' computing takes, asleep.
void start_nodes(LocalCluster& cluster, const std::string& job_file, const std::vector<std::string>& overrides,
                 std::vector<std::uint32_t> nodes, const std::string& us_per_sample) {
  const auto started =
      cluster.start_trainers({.command = cluster.train_command(
                                  job_file, overrides, {"--json", "--quiet", "--slow-us-per-sample", us_per_sample}),
                              .progress_socket = {},
                              .nodes = std::move(nodes)});
  REQUIRE_MESSAGE(started, started.error().message);
}

// The text that names a node in the coordinator's status; empty if none is slow.
std::string named(LocalCluster& cluster, std::uint64_t node) {
  const nlohmann::json jobs = status_of(cluster.coordinator_daemon()).at("coordinator").at("jobs");
  if (jobs.empty()) return {};
  for (const auto& pace : jobs.at(0).at("paces")) {
    if (number(pace, "node") == node && pace.at("lags").is_object()) return pace.at("lags").at("text");
  }
  return {};
}

TEST_CASE("with a deadline the slow node does what it manages, is named for it, and nothing is lost with a worker") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "deadline", .chunk_bytes = 8192, .rounds = 700});
  const auto cluster = start(three_nodes(dir));
  // 16 samples take 10 ms asleep, and there are 4 more for all else; the last node takes three times as long. 700 rounds
  // are seconds enough to be named in.
  const std::vector<std::string> overrides = {"sync.deadline_ms=14", "train.accumulation=8", "train.global_batch=48"};
  start_nodes(*cluster, job_file, overrides, {0, 1}, "600");
  start_nodes(*cluster, job_file, overrides, {2}, "1800");
  std::string text;
  REQUIRE(eventually([&] {
    const auto failure = cluster->failure();
    REQUIRE_MESSAGE(!failure, *failure);
    text = named(*cluster, 2);
    return !text.empty();
  }));
  CHECK(contains(text, "compute"));
  CHECK(named(*cluster, 0).empty());
  Daemon& worker = cluster->workers()[1];
  worker.process.terminate(milliseconds(0));
  REQUIRE(cluster->restart(worker));
  const auto all = finished(*cluster);
  CHECK(all[0].at("rounds") == 700);
  CHECK(number(all[2], "samples_left") > 700);
  CHECK(number(all[2], "samples_left") > 2 * number(all[0], "samples_left"));
  CHECK(number(all[0], "restarts") >= 1);
  CHECK(cluster->stop().empty());
}

}  // namespace
}  // namespace tributary::e2e::late_nodes_test

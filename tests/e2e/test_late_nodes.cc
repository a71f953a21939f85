// Late nodes: work-weighted rounds, and reports of stragglers, with real daemons.
#include <signal.h>

#include <algorithm>

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

void start_trainers_with(LocalCluster& cluster, const std::string& job_file, const std::vector<std::string>& overrides,
                         std::vector<std::vector<std::string>> rank_arguments,
                         const std::string& us_per_sample = "300") {
  const auto started =
      cluster.start_trainers({.command = cluster.train_command(
                                  job_file, overrides, {"--json", "--quiet", "--slow-us-per-sample", us_per_sample}),
                              .progress_socket = {},
                              .rank_arguments = std::move(rank_arguments)});
  REQUIRE_MESSAGE(started, started.error().message);
}

// The last rank's computing takes three times as long as the others'.
void start_with_slow_rank(LocalCluster& cluster, const std::string& job_file, const std::vector<std::string>& overrides,
                          const std::string& us_per_sample = "300") {
  std::vector<std::vector<std::string>> slow(3);
  slow[2] = {"--slow-factor", "3"};
  start_trainers_with(cluster, job_file, overrides, std::move(slow), us_per_sample);
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
  // 16 samples take 10 ms asleep, and there are 4 more for all else. 700 rounds are seconds enough to be named in.
  start_with_slow_rank(*cluster, job_file, {"sync.deadline_ms=14", "train.accumulation=8", "train.global_batch=48"},
                       "600");
  std::string text;
  REQUIRE(eventually([&] {
    const auto failure = cluster->failure();
    REQUIRE_MESSAGE(!failure, *failure);
    text = named(*cluster, 2);
    return !text.empty();
  }));
  CHECK(text.find("compute") != std::string::npos);
  CHECK(named(*cluster, 0).empty());
  Daemon& worker = cluster->workers()[1];
  worker.process.terminate(milliseconds(0));
  REQUIRE(cluster->restart(worker));
  finish_training(*cluster);
  const auto all = results(*cluster);
  CHECK(all[0].at("rounds") == 700);
  CHECK(number(all[2], "samples_left") > 700);
  CHECK(number(all[2], "samples_left") > 2 * number(all[0], "samples_left"));
  CHECK(number(all[0], "restarts") >= 1);
  CHECK(cluster->stop().empty());
}

TEST_CASE("the experiment runs, says what is ideal, and keeps what it measured before") {
  const TempDir dir;
  const std::string report = dir / "report";
  const std::string log = dir / "bench.log";
  const auto begin = [&](const std::string& variants, const std::string& folder) {
    std::filesystem::remove(log);
    auto process = Process::spawn({.argv = {bin("tributary"),
                                            "bench",
                                            "stragglers",
                                            "--seconds",
                                            "1",
                                            "--nodes",
                                            "2",
                                            "--batch",
                                            "32",
                                            "--micro-batches",
                                            "8",
                                            "--us-per-sample",
                                            "200",
                                            "--slowdown",
                                            "constant",
                                            "--variants",
                                            variants,
                                            "--json",
                                            "--report",
                                            folder},
                                   .log_file = log});
    REQUIRE_MESSAGE(process, process.error().message);
    return std::move(*process);
  };
  const auto measure = [&](const std::string& variants) {
    Process process = begin(variants, report);
    const auto status = process.wait(kPatience * 2);
    REQUIRE(status);
    return *status;
  };
  const auto bench = [&](const std::string& variants) {
    const ExitStatus status = measure(variants);
    const std::string said = last_lines(log, 15);
    INFO(said);
    // The page needs matplotlib; what was measured is kept without it.
    CHECK((status.ok() || (status.code == 1 && said.find("matplotlib") != std::string::npos)));
    std::ifstream in(report + "/stragglers.json");
    REQUIRE(in.good());
    return nlohmann::json::parse(in);
  };
  const nlohmann::json first = bench("sync,weighted");
  REQUIRE(first.at("runs").size() == 3);
  CHECK(first.at("runs").at(0).at("slowdown") == "none");
  CHECK(first.at("options").at("deadline_ms") >= 6);
  for (const auto& run : first.at("runs")) {
    CHECK(run.at("samples") > 0.0);
    CHECK(run.at("curve").size() > 5);
    CHECK(run.at("ratio") > 0.0);
  }
  CHECK(first.at("runs").at(1).at("ideal_per_s") < first.at("runs").at(0).at("samples_per_s"));
  CHECK(first.at("runs").at(2).at("left") > 0.0);
  const nlohmann::json second = bench("async");
  REQUIRE(second.at("runs").size() == 4);
  CHECK(second.at("runs").at(1) == first.at("runs").at(1));
  // A file with the same options that lacks something is refused by its name, and left as it is.
  nlohmann::json damaged = second;
  damaged.at("runs").at(0).erase("samples_per_s");
  std::ofstream(report + "/stragglers.json") << damaged.dump();
  CHECK(measure("sync").code == 1);
  const std::string said = last_lines(log, 15);
  INFO(said);
  CHECK(said.find(report + "/stragglers.json is not what this command wrote") != std::string::npos);
  CHECK(said.find("samples_per_s") != std::string::npos);
  std::ifstream kept(report + "/stragglers.json");
  CHECK(nlohmann::json::parse(kept) == damaged);

  // An interrupted run keeps the measurements made by then.
  const std::string other = dir / "interrupted";
  Process interrupted = begin("sync,weighted,ssp-1,ssp-4,async", other);
  REQUIRE(eventually([&] { return std::filesystem::exists(other + "/stragglers.json"); }));
  interrupted.send_signal(SIGINT);
  const auto status = interrupted.wait(kPatience);
  REQUIRE(status);
  CHECK(status->code == 1);
  std::ifstream partly(other + "/stragglers.json");
  const auto runs = nlohmann::json::parse(partly).at("runs");
  CHECK(runs.size() >= 1);
  CHECK(runs.size() < 6);
}

}  // namespace
}  // namespace tributary::e2e::late_nodes_test

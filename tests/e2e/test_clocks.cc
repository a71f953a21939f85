// Nodes with clocks of their own (modes ssp and async), with real daemons.
#include <signal.h>

#include <optional>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::clocks_test {
namespace {

std::uint64_t number(const nlohmann::json& json, const char* key) {
  return json.at(key).get<std::uint64_t>();
}

// Ranks that can tell from their parameters which pushes they hold (clock_rank.cc).
constexpr std::uint64_t kClocks = 3000;  // seconds: there is time for two kills
constexpr std::uint32_t kChunks = 12;

// staleness: none in mode async.
std::string write_counting_job(const TempDir& dir, std::optional<std::uint64_t> staleness,
                               std::uint64_t snapshot_every_rounds) {
  const std::string path = dir / "counting.toml";
  std::ofstream out(path);
  out << "[job]\nname = \"counting\"\nmode = \"" << (staleness ? "ssp" : "async") << "\"\nchunk_bytes = 4096\n";
  if (staleness) out << "[ssp]\nstaleness = " << *staleness << "\n";
  out << "[optimizer]\nname = \"sgd\"\nlr = 1.0\n[snapshot]\nevery_s = 0\nevery_rounds = " << snapshot_every_rounds
      << "\n";
  out.close();
  REQUIRE(out.good());
  return path;
}

void start_counting(LocalCluster& cluster, const std::string& job_file, std::uint64_t clocks = kClocks,
                    std::uint32_t chunks = kChunks) {
  required(cluster.start_trainers(
      {.command = job_command({bin("clock_rank")}, job_file, {}, {std::to_string(clocks), std::to_string(chunks)}),
       .progress_socket = {}}));
}

std::vector<nlohmann::json> counted(LocalCluster& cluster) {
  std::vector<nlohmann::json> all;
  for (const Trainer& trainer : cluster.trainers()) {
    const std::string line = trainer_result(trainer);
    INFO("rank " << trainer.rank << ":\n" << last_lines(trainer.log_file, 15, trainer.log_from));
    REQUIRE_FALSE(line.empty());
    all.push_back(nlohmann::json::parse(line));
    INFO(all.back().at("first_violation"));
    for (const auto& [kind, count] : all.back().at("violations").items()) CHECK_MESSAGE(count == 0, kind);
  }
  return all;
}

TEST_CASE(
    "with a bound on staleness, and without, all ranks end with the same parameters and say how stale they were") {
  const TempDir dir;
  for (const std::string mode : {"ssp", "async"}) {
    const std::string job_file = write_job(dir, {.name = mode, .chunk_bytes = 8192, .rounds = 300});
    std::vector<std::string> overrides = {"job.mode=\"" + mode + "\""};
    if (mode == "ssp") overrides.push_back("ssp.staleness=2");
    for (const Transport transport : {Transport::kShm, Transport::kTcp}) {
      const auto all = trained(spread(dir / "run", {.transport = transport}), job_file, overrides);
      CHECK(all[0].at("rounds") == 300);
      CHECK_FALSE(all[0].at("digest").get<std::string>().empty());
      CHECK(number(all[0].at("staleness"), "pulls") > 300);
      if (mode == "ssp") CHECK(number(all[0].at("staleness"), "max") <= 2);
    }
  }
}

TEST_CASE("a single node with a clock ends in the bits of synchronous rounds") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "one", .chunk_bytes = 8192});
  const std::string reference = standalone_digest(dir, job_file, 2);
  const auto all = trained(spread(dir / "run", {.nodes = 1}), job_file, {"job.mode=\"ssp\"", "ssp.staleness=1"});
  CHECK(all[0].at("digest") == reference);
}

TEST_CASE("the ranks themselves see that the bound holds and every push is applied once") {
  constexpr std::uint32_t kNodes = 3, kManyChunks = 32;
  constexpr std::uint64_t kPulls = 4000, kClocksOfPulls = kPulls / (kNodes * kManyChunks) + 1;
  for (const Transport transport : {Transport::kShm, Transport::kTcp}) {
    for (const std::optional<std::uint64_t> bound : {std::optional<std::uint64_t>(0), {1}, {}}) {
      const TempDir dir;
      ClusterOptions options = two_by_two(dir);
      options.nodes = kNodes;
      options.transport = transport;
      options.store = false;
      const auto cluster = start(options);
      start_counting(*cluster, write_counting_job(dir, bound, 0), kClocksOfPulls, kManyChunks);
      finish_training(*cluster);
      std::uint64_t pulls = 0, most = 0;
      for (const auto& rank : counted(*cluster)) {
        CHECK(rank.at("told_sum") == rank.at("staleness_sum"));
        CHECK(rank.at("told_max") == rank.at("max_staleness"));
        most = std::max(most, number(rank, "max_staleness"));
        if (number(rank, "rank") % options.ranks_per_node == 0) pulls += number(rank, "pulls");  // a node pulls once
      }
      CHECK(pulls >= kPulls);
      CHECK((bound ? most == *bound : most > 1));
      CHECK(cluster->stop().empty());
    }
  }
}

TEST_CASE("SIGTERM to every daemon, and the same again: every push is in the parameters once") {
  const TempDir dir;
  const std::string job_file = write_counting_job(dir, 3, 0);
  std::uint64_t stopped_at = ~0ull;
  {
    const auto cluster = start(two_by_two(dir));
    start_counting(*cluster, job_file);
    wait_for(*cluster, "min_version", 50);
    stop_daemons(*cluster);
    for (const auto& rank : counted(*cluster)) {
      CHECK(rank.at("stopped") == true);
      stopped_at = std::min(stopped_at, number(rank, "clock"));
    }
    CHECK(stopped_at < kClocks);
    CHECK(cluster->stop().empty());
  }
  const auto cluster = start(two_by_two(dir));
  start_counting(*cluster, job_file);
  finish_training(*cluster);
  for (const auto& rank : counted(*cluster)) {
    CHECK(number(rank, "clock") == kClocks);
    CHECK(number(rank, "resumed_from") >= 49);
    CHECK(number(rank, "resumed_from") <= stopped_at);
  }
  CHECK(cluster->stop().empty());
}

TEST_CASE("kill -9 of a server, of a worker: from the last snapshot on every push is in the parameters once") {
  const TempDir dir;
  const std::string job_file = write_counting_job(dir, 2, 20);
  const auto cluster = start(two_by_two(dir));
  start_counting(*cluster, job_file);
  const auto kill = [&](Daemon& daemon) {
    const std::uint64_t before = job_number(*cluster, "committed");
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") > before; }));
    const std::uint64_t view = job_number(*cluster, "view");
    daemon.process.terminate(milliseconds(0));
    restart(*cluster, daemon);
    REQUIRE(eventually([&] { return job_number(*cluster, "view") > view; }));
  };
  kill(cluster->servers()[1]);
  kill(cluster->workers()[0]);
  finish_training(*cluster);
  for (const auto& rank : counted(*cluster)) {
    CHECK(number(rank, "clock") == kClocks);
    CHECK(number(rank, "attaches") >= 3);
  }
  CHECK(cluster->stop().empty());
}

}  // namespace
}  // namespace tributary::e2e::clocks_test

// recovery.redo_log = "disk": servers and workers killed at once lose nothing that was written, and full disks are
// waited for.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "tests/e2e/e2e.h"
#include "tests/unit/small_disk.h"

namespace tributary::e2e {
namespace {

namespace fs = std::filesystem;
using testing::SmallDisk;

constexpr std::uint64_t kRounds = 6000;

ClusterOptions two_by_two(const std::string& base_dir) {
  ClusterOptions options = options_in(base_dir);
  options.servers = 2;
  options.nodes = 2;
  options.ranks_per_node = 2;
  return options;
}

void wait_until(LocalCluster& cluster, const std::function<bool()>& condition) {
  REQUIRE(eventually([&] {
    const auto failure = cluster.failure();
    REQUIRE_MESSAGE(!failure, *failure);
    return condition();
  }));
}

nlohmann::json job_on(const Daemon& server) {
  const nlohmann::json status = status_of(server);
  return status.at("jobs").empty() ? nlohmann::json() : status.at("jobs").at(0);
}

bool log_says(const Daemon& daemon, const std::string& part) {
  std::ifstream in(daemon.log_file);
  return std::string(std::istreambuf_iterator<char>(in), {}).find(part) != std::string::npos;
}

// The last round that the server took again out of its log, in its own words; 0: none.
std::uint64_t replayed_to(const Daemon& server) {
  std::ifstream in(server.log_file);
  const std::string text{std::istreambuf_iterator<char>(in), {}}, words = "logged steps again, up to round ";
  const auto at = text.rfind(words);
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + words.size()));
}

// The newest round that both servers' logs have, if they go back to the newest snapshot.
std::uint64_t logged(LocalCluster& cluster) {
  std::uint64_t last = ~0ull;
  for (const Daemon& server : cluster.servers()) {
    const nlohmann::json job = job_on(server);
    if (!job.is_object() || !job.at("redo_log").is_object() || !job.at("snapshot").at("durable").is_number()) return 0;
    const nlohmann::json& log = job.at("redo_log");
    if (log.at("first").get<std::uint64_t>() > job.at("snapshot").at("durable").get<std::uint64_t>() + 1) return 0;
    last = std::min(last, log.at("last").get<std::uint64_t>());
  }
  return last;
}

void kill(std::vector<Daemon>& daemons) {
  for (Daemon& daemon : daemons) daemon.process.send_signal(SIGKILL);
  for (Daemon& daemon : daemons) REQUIRE(daemon.process.wait(kPatience));
}

void restart(LocalCluster& cluster, std::vector<Daemon>& daemons) {
  for (Daemon& daemon : daemons) {
    const auto restarted = cluster.restart(daemon);
    REQUIRE_MESSAGE(restarted, restarted.error().message);
  }
}

// Few snapshots, so that what comes back comes out of the log.
std::string disk_job(const TempDir& dir, const std::string& name, std::uint64_t rounds, const std::string& extra = {}) {
  return write_job(
      dir, {.name = name, .chunk_bytes = 8192, .rounds = rounds, .extra = "[recovery]\nredo_log = \"disk\"\n" + extra});
}

}  // namespace

TEST_CASE("all servers and workers killed at once: the job goes on at the newest round that all logs have") {
  const TempDir dir;
  const std::string job_file = disk_job(dir, "logged", kRounds);
  const std::string reference = standalone_digest(dir, job_file, 4);
  const auto cluster = start(two_by_two(dir / "run"));
  start_trainers(*cluster, job_file);
  std::uint64_t committed = 0, durable = 0;
  wait_until(*cluster, [&] {
    committed = job_number(*cluster, "committed");
    durable = logged(*cluster);
    return committed > 0 && durable > committed + 200;
  });
  for (auto* daemons : {&cluster->servers(), &cluster->workers()}) {
    for (Daemon& daemon : *daemons) daemon.process.send_signal(SIGKILL);
  }
  for (auto* daemons : {&cluster->servers(), &cluster->workers()}) {
    for (Daemon& daemon : *daemons) REQUIRE(daemon.process.wait(kPatience));
  }
  for (auto* daemons : {&cluster->servers(), &cluster->workers()}) restart(*cluster, *daemons);
  finish_training(*cluster);
  const auto all = results(*cluster);
  CHECK(all[0].at("restarts").get<int>() >= 1);
  CHECK(all[0].at("digest") == reference);
  for (const Daemon& server : cluster->servers()) CHECK(replayed_to(server) >= durable);
  CHECK(cluster->stop().empty());
}

TEST_CASE("everything killed at once, trainers too, twice: a new start goes on at a round out of the log") {
  const TempDir dir;
  const std::string job_file = disk_job(dir, "machines", kRounds);
  const std::string reference = standalone_digest(dir, job_file, 4);
  std::uint64_t durable = 0;
  for (int time = 0; time < 2; ++time) {
    const auto cluster = start(two_by_two(dir / "run"));
    start_trainers(*cluster, job_file);
    const std::uint64_t before = durable;
    wait_until(*cluster, [&] { return (durable = logged(*cluster)) > before + 300; });
    for (auto* daemons : {&cluster->servers(), &cluster->workers()}) kill(*daemons);
    for (Trainer& trainer : cluster->trainers()) trainer.process.terminate(milliseconds(0));
    if (time == 0) continue;
    CHECK(replayed_to(cluster->servers()[0]) >= before);
  }
  const auto cluster = start(two_by_two(dir / "run"));
  start_trainers(*cluster, job_file);
  finish_training(*cluster);
  const auto all = results(*cluster);
  CHECK(all[0].at("resumed_from").get<std::uint64_t>() >= durable);
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

TEST_CASE("chaos with a log on disk ends in the bits of a calm run") {
  const TempDir dir;
  const std::string job_file = disk_job(dir, "storm", 0, "when_full = \"wait\"\n");
  const std::string log = dir / "chaos.log", out = dir / "chaos.json";
  const std::string command = bin("tributary") + " chaos " + job_file +
                              " --kills 12 --seed 4 --pause 0.3 --json --base-dir " + (dir / "run") + " > " + out;
  auto process = Process::spawn({.argv = {"/bin/sh", "-c", command}, .log_file = log});
  REQUIRE_MESSAGE(process, process.error().message);
  const auto status = process->wait(std::chrono::milliseconds(180'000));
  INFO(last_lines(log, 40));
  REQUIRE(status);
  REQUIRE(status->ok());
  std::ifstream in(out);
  const auto result = nlohmann::json::parse(in);
  CHECK(result.at("same") == true);
  CHECK(result.at("kills").get<int>() >= 12);
}

TEST_CASE("a full disk of a server: training waits for room, says for what, and goes on by itself to the same bits") {
  const TempDir dir;
  const std::string base = dir / "run";
  fs::create_directories(base + "/store-1");
  const auto disk = SmallDisk::mount(96u << 20, base + "/store-1");
  if (!disk) return;
  std::string extra, waits_for;
  bool log = false;
  SUBCASE("of its log") {
    log = true;
    extra = "[recovery]\nredo_log = \"disk\"\nwhen_full = \"wait\"\nlog_mb = 24\n";
  }
  SUBCASE("of its snapshots, while nodes keep what they push") {
    extra = "[recovery]\nwhen_full = \"wait\"\nredo_mb = 8\n";
  }
  const std::string job_file = write_job(dir, {.name = "full", .chunk_bytes = 8192, .rounds = 4000, .extra = extra});
  const std::string reference = standalone_digest(dir, job_file, 4);
  ClusterOptions options = two_by_two(base);
  options.fresh = false;
  const auto cluster = start(options);
  start_trainers(*cluster, job_file);
  wait_until(*cluster, [&] { return job_number(*cluster, "committed") > 0; });
  disk->fill();
  // It says so, and nothing moves any more.
  wait_until(*cluster, [&] {
    const nlohmann::json job = job_on(cluster->servers()[1]);
    if (!job.is_object()) return false;
    const std::string error = log ? job.at("redo_log").at("error") : job.at("snapshot").at("error");
    return error.find("No space left") != std::string::npos;
  });
  const auto version = [&] { return job_number(*cluster, "max_version"); };
  std::uint64_t stood = 0;
  wait_until(*cluster, [&] {
    stood = version();
    std::this_thread::sleep_for(milliseconds(1000));
    return version() == stood;
  });
  CHECK(stood < 4000);
  CHECK(eventually([&] {  // nodes say it after some seconds
    return std::ranges::any_of(log ? cluster->servers() : cluster->workers(), [&](const Daemon& daemon) {
      return log_says(daemon, log ? "training waits until it can be" : "waits until the servers have a newer snapshot");
    });
  }));
  disk->make_room();
  finish_training(*cluster);
  const auto all = results(*cluster);
  CHECK(all[0].at("rounds") == 4000);
  CHECK(all[0].at("restarts").get<int>() == 0);
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

TEST_CASE("a full disk of a server: a job that does not wait trains on, and snapshots come again when there is room") {
  const TempDir dir;
  const std::string base = dir / "run";
  fs::create_directories(base + "/store-1");
  const auto disk = SmallDisk::mount(96u << 20, base + "/store-1");
  if (!disk) return;
  const std::string job_file = write_job(dir, {.name = "on",
                                               .chunk_bytes = 8192,
                                               .rounds = 0,
                                               .snapshot_every_rounds = 50,
                                               .extra = "[recovery]\nredo_log = \"disk\"\nlog_mb = 24\n"});
  ClusterOptions options = two_by_two(base);
  options.fresh = false;
  const auto cluster = start(options);
  start_trainers(*cluster, job_file);
  wait_until(*cluster, [&] { return job_number(*cluster, "committed") > 0; });
  disk->fill();
  wait_until(*cluster, [&] {
    const nlohmann::json job = job_on(cluster->servers()[1]);
    return job.at("snapshot").at("error").get<std::string>().find("No space left") != std::string::npos;
  });
  const std::uint64_t committed = job_number(*cluster, "committed"), version = job_number(*cluster, "max_version");
  wait_until(*cluster, [&] { return job_number(*cluster, "max_version") > version + 500; });
  CHECK(job_number(*cluster, "committed") <= committed + 50);
  // A checkpoint of what is committed cannot be written to that disk, and leaves nothing there.
  const std::string log = dir / "save.log";
  auto save = Process::spawn({.argv = {bin("tributary"), "checkpoint", "save", "on", "--dir", *disk / "checkpoints",
                                       "--committed", "--base-dir", base},
                              .log_file = log});
  REQUIRE(save);
  const auto status = save->wait(kPatience);
  REQUIRE(status);
  CHECK_FALSE(status->ok());
  CHECK(last_lines(log, 5).find("No space left") != std::string::npos);
  disk->make_room();
  wait_until(*cluster, [&] { return job_number(*cluster, "committed") > committed + 500; });
  CHECK(job_on(cluster->servers()[1]).at("snapshot").at("error") == "");
  CHECK(cluster->stop().empty());
}

}  // namespace tributary::e2e

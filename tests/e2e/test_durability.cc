// Servers and workers killed at once, and full disks: only time is lost, not bits.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "tests/e2e/e2e.h"
#include "tests/unit/server/store/small_disk.h"

namespace tributary::e2e::durability_test {
namespace {

namespace fs = std::filesystem;
using testing::SmallDisk;

constexpr std::uint64_t kRounds = 3000;

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

void kill(std::vector<Daemon>& daemons) {
  for (Daemon& daemon : daemons) daemon.process.send_signal(SIGKILL);
  for (Daemon& daemon : daemons) REQUIRE(daemon.process.wait(kPatience));
}

void restart(LocalCluster& cluster, std::vector<Daemon>& daemons) {
  for (Daemon& daemon : daemons) e2e::restart(cluster, daemon);
}

}  // namespace

TEST_CASE("all servers and workers killed at once, and trainers not: the nodes have what came after the snapshot") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "daemons", .chunk_bytes = 8192, .rounds = kRounds});
  const std::string reference = standalone_digest(dir, job_file, 4);
  const auto cluster = start(two_by_two(dir), job_file);
  wait_until(*cluster, [&] { return job_number(*cluster, "committed") > 0; });
  for (auto* daemons : {&cluster->servers(), &cluster->workers()}) kill(*daemons);
  for (auto* daemons : {&cluster->servers(), &cluster->workers()}) restart(*cluster, *daemons);
  const auto all = finished(*cluster);
  CHECK(all[0].at("restarts").get<int>() >= 1);
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

TEST_CASE("everything killed at once, trainers too, twice: a new start goes on at the snapshot, to the same bits") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "machines", .chunk_bytes = 8192, .rounds = kRounds});
  const std::string reference = standalone_digest(dir, job_file, 4);
  std::uint64_t committed = 0;
  for (int time = 0; time < 2; ++time) {
    const auto cluster = start(two_by_two(dir), job_file);
    const std::uint64_t before = committed;
    wait_until(*cluster, [&] { return (committed = job_number(*cluster, "committed")) > before; });
    for (auto* daemons : {&cluster->servers(), &cluster->workers()}) kill(*daemons);
    for (Trainer& trainer : cluster->trainers()) trainer.process.terminate(milliseconds(0));
  }
  const auto cluster = start(two_by_two(dir), job_file);
  const auto all = finished(*cluster);
  CHECK(all[0].at("resumed_from").get<std::uint64_t>() >= committed);
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

TEST_CASE("a full disk of a server: training goes on, and snapshots come again when there is room") {
  const TempDir dir;
  const std::string base = dir / "run";
  fs::create_directories(base + "/store-1");
  const auto disk = SmallDisk::mount(96u << 20, base + "/store-1");
  if (!disk) return;
  const std::string job_file =
      write_job(dir, {.name = "on", .chunk_bytes = 8192, .rounds = 0, .snapshot_every_rounds = 50});
  const auto cluster = start(two_by_two(dir), job_file);
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
  const Outcome save = run({bin("tributary"), "checkpoint", "save", "on", "--dir", *disk / "checkpoints", "--committed",
                            "--base-dir", base});
  CHECK(save.status != 0);
  CHECK(contains(save.text, "No space left"));
  disk->make_room();
  wait_until(*cluster, [&] { return job_number(*cluster, "committed") > committed + 500; });
  CHECK(job_on(cluster->servers()[1]).at("snapshot").at("error") == "");
  CHECK(cluster->stop().empty());
}

}  // namespace tributary::e2e::durability_test

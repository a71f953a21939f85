// Lost disks: each part of a snapshot is on two servers, and a server that has lost its store reads its part from there.
#include <filesystem>
#include <fstream>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::copies_test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kRounds = 2000;

ClusterOptions servers_in(const TempDir& dir, std::uint32_t servers) {
  ClusterOptions options = two_by_two(dir);
  options.servers = servers;
  return options;
}

std::uint64_t copies(LocalCluster& cluster) {
  return job_number(cluster, "copies");
}

Job job_called(const std::string& name) {
  return {.name = name, .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 50};
}

// The servers' disks are lost one after the other while the job trains.
void outlives(const TempDir& dir, ClusterOptions options, const std::vector<int>& lost) {
  const std::string job_file = write_job(dir, job_called("lost"));
  const std::string reference = standalone_digest(dir, job_file, 4);
  const auto cluster = start(options, job_file, kTwoCopies);
  for (const int server : lost) {
    REQUIRE(eventually([&] { return copies(*cluster) == 2; }));
    Daemon& daemon = cluster->servers()[static_cast<std::size_t>(server)];
    lose_for_good(*cluster, static_cast<std::size_t>(server));
    restart(*cluster, daemon);
    const bool read = eventually([&] { return contains(log_of(daemon), "it is read from there"); });
    for (auto* daemons : {&cluster->servers(), &cluster->workers()}) {
      for (const Daemon& d : *daemons) {
        if (!read) MESSAGE(d.name << ":\n" << last_lines(d.log_file, 25, d.log_from));
      }
    }
    REQUIRE(read);
  }
  REQUIRE(eventually([&] { return copies(*cluster) == 2; }));
  const auto all = finished(*cluster);
  CHECK(all[0].at("restarts").get<int>() >= static_cast<int>(lost.size()));
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

}  // namespace

TEST_CASE("a job outlives the lost disks of its servers, one after the other, in the same bits") {
  const TempDir dir;
  SUBCASE("two servers, server 0's with the registry") {
    outlives(dir, servers_in(dir, 2), {1, 0, 1});
  }
  SUBCASE("three servers with keys") {
    ClusterOptions options = servers_in(dir, 3);
    options.secure = PayloadSecurity::kPlain;
    outlives(dir, options, {0, 2});
  }
}

TEST_CASE("a stopped job whose server's disk was lost goes on from where it was; with two lost it is refused") {
  const TempDir dir;
  const std::string job_file = write_job(dir, job_called("stopped"));
  const std::string reference = standalone_digest(dir, job_file, 4);
  ClusterOptions options = servers_in(dir, 3);
  std::uint64_t stopped = 0;
  {
    const auto cluster = start(options, job_file, kTwoCopies);
    wait_for(*cluster, "max_version", 100);
    CHECK(cluster->stop().empty());  // with the copies of its last snapshot
    stopped = results(*cluster)[0].at("rounds");
  }
  options.fresh = false;
  const std::string base = dir / "run";
  SUBCASE("one disk") {
    fs::remove_all(base + "/store-1");
    const auto cluster = start(options, job_file, kTwoCopies);
    const auto all = finished(*cluster);
    CHECK(all[0].at("resumed_from") == stopped);
    CHECK(all[0].at("digest") == reference);
    CHECK(cluster->stop().empty());
  }
  SUBCASE("a server's, and that of the server that had the copy") {
    for (const char* store : {"/store-1", "/store-2"}) fs::remove_all(base + store);
    const auto cluster = start(options, job_file, kTwoCopies);
    REQUIRE(cluster->wait_for_trainers(kPatience));
    const auto failure = required(cluster->failure());
    CHECK(contains(failure, "server 1's store lacks the snapshot of round " + std::to_string(stopped)));
    CHECK(contains(failure, "restore a checkpoint"));
    cluster->stop_now();
  }
}

TEST_CASE("servers on one machine keep no copies, and status says so") {
  const TempDir dir;
  const auto cluster = start(servers_in(dir, 2), write_job(dir, job_called("alone")));
  wait_for(*cluster, "committed", 50);
  CHECK(copies(*cluster) == 1);
  cluster->stop_now();
}

}  // namespace tributary::e2e::copies_test

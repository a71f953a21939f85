// A coordinator that moves: the server that has it is lost for good, with its store (docs/failover.md).
#include <fstream>
#include <sstream>

#include "tests/e2e/tool_call.h"

namespace tributary::e2e::failover_test {
namespace {

constexpr std::uint64_t kRounds = 2000;

ClusterOptions moving_in(const TempDir& dir, std::uint16_t servers) {
  ClusterOptions options = two_by_two(dir);
  options.servers = servers;
  options.coordinators = 2;
  options.heartbeat_ms = 200;
  options.peer_timeout_ms = 2000;
  return options;
}

// The address of the first that may have the coordinator is another machine's, as the server is on another one now.
void move_away(const LocalCluster& cluster, const std::string& config) {
  std::ifstream in(config);
  std::stringstream all;
  all << in.rdbuf();
  std::string text = all.str();
  const std::size_t at = text.find(cluster.coordinator());
  REQUIRE(at != std::string::npos);
  text.replace(at, cluster.coordinator().size(), "tcp://192.0.2.1:7070");  // of a network for examples
  std::ofstream(config) << text;
}

}  // namespace

TEST_CASE(
    "a job outlives the server that has the coordinator, with its store; the next one goes on, in the same bits") {
  const TempDir dir;
  ClusterOptions options = moving_in(dir, 2);
  SUBCASE("two servers") {}
  SUBCASE("three with keys, over sockets") {
    options = moving_in(dir, 3);
    options.transport = Transport::kTcp;
    options.secure = PayloadSecurity::kPlain;
  }
  const std::string job_file =
      write_job(dir, {.name = "moves", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 50});
  const std::string reference = standalone_digest(dir, job_file, 4);
  const auto cluster = start(options);
  CHECK(LocalCluster::has_coordinator(cluster->servers()[0]));
  CHECK_FALSE(LocalCluster::has_coordinator(cluster->servers()[1]));
  CHECK(contains(answer_of(cluster->servers()[0], "/metrics"), "tributary_coordinator_here 1"));
  CHECK(contains(answer_of(cluster->servers()[1], "/metrics"), "tributary_coordinator_here 0"));
  CHECK(contains(answer_of(cluster->servers()[1], "/"), "has it; ask there"));
  start_trainers(*cluster, job_file, kTwoCopies);
  std::size_t holder = 0;
  for (int moves = 0; moves < 2; ++moves) {
    REQUIRE(eventually([&] { return job_number(*cluster, "copies") == 2; }));
    lose_for_good(*cluster, holder);
    const std::size_t next = 1 - holder;
    REQUIRE(eventually([&] { return LocalCluster::has_coordinator(cluster->servers()[next]); }));
    if (options.transport == Transport::kTcp && moves == 0) {
      move_away(*cluster, cluster->base_dir() + "/server-0.toml");
      restart(*cluster, cluster->servers()[holder]);
      CHECK(contains(log_of(cluster->servers()[0]), "tcp://192.0.2.1:7070 is no address of this machine"));
      break;  // one of two is left
    }
    restart(*cluster, cluster->servers()[holder]);
    CHECK_FALSE(LocalCluster::has_coordinator(cluster->servers()[holder]));
    holder = next;
  }
  REQUIRE(eventually([&] { return job_number(*cluster, "copies") == 2; }));
  // Orders find the one that has it.
  Call save(
      dir, {"checkpoint", "save", "moves", "--dir", cluster->base_dir() + "/saved", "--base-dir", cluster->base_dir()});
  CHECK(save.wait() == 0);
  CHECK(finished(*cluster)[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

TEST_CASE("a stopped cluster goes on under the server that has the coordinator first again") {
  const TempDir dir;
  ClusterOptions options = moving_in(dir, 2);
  const std::string job_file =
      write_job(dir, {.name = "again", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 50});
  const std::string reference = standalone_digest(dir, job_file, 4);
  std::uint64_t stopped = 0;
  {
    const auto cluster = start(options, job_file, kTwoCopies);
    REQUIRE(eventually([&] { return job_number(*cluster, "copies") == 2; }));
    cluster->servers()[0].process.terminate(milliseconds(0));  // its store stays, and gets old
    REQUIRE(eventually([&] { return LocalCluster::has_coordinator(cluster->servers()[1]); }));
    restart(*cluster, cluster->servers()[0]);
    REQUIRE(eventually([&] { return trains(*cluster); }));
    const std::uint64_t before = job_number(*cluster, "committed");
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") > before + 50; }));
    CHECK(cluster->stop().empty());
    stopped = results(*cluster)[0].at("rounds");
  }
  options.fresh = false;
  const auto cluster = start(options);
  CHECK(LocalCluster::has_coordinator(cluster->servers()[0]));
  start_trainers(*cluster, job_file, kTwoCopies);
  const auto all = finished(*cluster);
  CHECK(all[0].at("resumed_from") == stopped);
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

}  // namespace tributary::e2e::failover_test

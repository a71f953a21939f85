// Servers that come and go: a job's chunks go to the servers that are there (docs/failover.md).
#include <functional>
#include <memory>
#include <set>

#include "tests/e2e/tool_call.h"

namespace tributary::e2e::servers_come_and_go_test {
namespace {

constexpr std::uint64_t kRounds = 3000;

ClusterOptions three_servers(const TempDir& dir) {
  ClusterOptions options = two_by_two(dir);
  options.servers = 3;
  options.heartbeat_ms = 200;
  options.peer_timeout_ms = 2000;
  return options;
}

std::string job_in(const TempDir& dir) {
  return write_job(dir, {.name = "moves", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 50});
}

std::vector<std::string> continuing() {
  std::vector<std::string> set = kTwoCopies;
  set.emplace_back("membership.on_server_loss=continue");
  set.emplace_back("membership.rejoin_ms=500");
  return set;
}

// The servers that have chunks of the job.
std::set<int> servers_of(LocalCluster& cluster) {
  std::set<int> servers;
  const nlohmann::json status = status_of(cluster.coordinator_daemon());
  for (const nlohmann::json& job : status.at("coordinator").at("jobs")) {
    if (job.at("placement").is_null()) continue;
    for (const nlohmann::json& server : job.at("placement").at("servers")) {
      if (server.at("chunks").get<int>() != 0) servers.insert(server.at("server").get<int>());
    }
  }
  return servers;
}

void wait_until_on(LocalCluster& cluster, const std::set<int>& servers) {
  REQUIRE(eventually([&] { return servers_of(cluster) == servers && job_number(cluster, "copies") == 2; }));
}

// Three servers, whose job has chunks on each.
struct Moving {
  explicit Moving(
      const std::vector<std::string>& set = continuing(),
      const std::function<void(ClusterOptions&)>& change = [](ClusterOptions&) {}) {
    ClusterOptions options = three_servers(dir);
    change(options);
    cluster = start(options);
    start_trainers(*cluster, job_file, set);
    wait_until_on(*cluster, {0, 1, 2});
  }
  // With the digest of one process.
  void ends() { CHECK(finished(*cluster)[0].at("digest") == reference); }
  void stops() { CHECK(cluster->stop().empty()); }

  TempDir dir;
  const std::string job_file = job_in(dir);
  const std::string reference = standalone_digest(dir, job_file, 4);
  std::unique_ptr<LocalCluster> cluster;
};

}  // namespace

TEST_CASE("a job goes on without a server that is lost for good, and goes to it when it is back, in the same bits") {
  bool sockets = false;
  SUBCASE("shared memory") {}
  SUBCASE("keys, over sockets") {
    sockets = true;
  }
  Moving job(continuing(), [&](ClusterOptions& options) {
    if (!sockets) return;
    options.transport = Transport::kTcp;
    options.secure = PayloadSecurity::kPlain;
  });
  LocalCluster& cluster = *job.cluster;
  lose_for_good(cluster, 2);
  wait_until_on(cluster, {0, 1});
  // Another one is lost, with the part that the first left it.
  lose_for_good(cluster, 1);
  REQUIRE(eventually([&] { return servers_of(cluster) == std::set<int>{0}; }));
  for (const std::size_t index : {1, 2}) restart(cluster, cluster.servers()[index]);
  wait_until_on(cluster, {0, 1, 2});
  job.ends();
  job.stops();
}

TEST_CASE("a job outlives the machine of the server that has the coordinator, on the two that are left of three") {
  Moving job(continuing(), [](ClusterOptions& options) { options.coordinators = 3; });
  LocalCluster& cluster = *job.cluster;
  lose_for_good(cluster, 0);
  REQUIRE(eventually([&] { return LocalCluster::has_coordinator(cluster.servers()[1]); }));
  wait_until_on(cluster, {1, 2});
  restart(cluster, cluster.servers()[0]);
  wait_until_on(cluster, {0, 1, 2});
  job.ends();
  job.stops();
}

TEST_CASE("a machine with a server and a node is lost for good: the job goes on out of the copy, in the same bits") {
  Moving job;
  LocalCluster& cluster = *job.cluster;
  for (const std::uint32_t rank : {2, 3}) cluster.trainers()[rank].process.terminate(milliseconds(0));
  cluster.workers()[1].process.terminate(milliseconds(0));
  lose_for_good(cluster, 2);
  restart(cluster, cluster.workers()[1]);  // the node, on another machine
  for (const std::uint32_t rank : {2, 3}) restart_trainer(cluster, rank);
  wait_until_on(cluster, {0, 1});
  restart(cluster, cluster.servers()[2]);
  wait_until_on(cluster, {0, 1, 2});
  job.ends();
  job.stops();
}

TEST_CASE("a server that is told to stop hands its chunks on; when it is started again it gets some") {
  Moving job;
  LocalCluster& cluster = *job.cluster;
  const ExitStatus ended = cluster.servers()[1].process.terminate(seconds(20));
  CHECK_MESSAGE(ended.ok(), ended.describe() << "\n" << log_of(cluster.servers()[1]));
  REQUIRE(eventually([&] { return servers_of(cluster) == std::set<int>{0, 2}; }));
  restart(cluster, cluster.servers()[1]);
  wait_until_on(cluster, {0, 1, 2});
  job.ends();
  job.stops();
}

TEST_CASE("a job goes to other servers by order, while it trains and when it is stopped") {
  Moving job(kTwoCopies);
  LocalCluster& cluster = *job.cluster;
  const auto deal = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"job", "deal", "moves", "--base-dir", cluster.base_dir()});
    Call call(job.dir, more);
    return call.wait();
  };
  CHECK(deal({"--without", "1"}) == 0);
  wait_until_on(cluster, {0, 2});
  CHECK(deal({"--without", "0", "--without", "1", "--without", "2"}) != 0);
  CHECK(deal({}) == 0);
  wait_until_on(cluster, {0, 1, 2});
  job.ends();
  CHECK(deal({"--without", "2"}) == 0);
  job.stops();
}

}  // namespace tributary::e2e::servers_come_and_go_test

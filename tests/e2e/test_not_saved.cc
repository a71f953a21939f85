// State that was to be kept and is not never ends with status 0, or in silence; and every rank learns who stopped a
// job.
#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"
#include "tests/unit/server/store/small_disk.h"

namespace tributary::e2e::not_saved_test {
namespace {

namespace fs = std::filesystem;
using testing::SmallDisk;

std::string all_of(const std::string& file, std::uint64_t from = 0) {
  std::ifstream in(file);
  in.seekg(static_cast<std::streamoff>(from));
  return {std::istreambuf_iterator<char>(in), {}};
}

unsigned health_of(const Daemon& daemon) {
  const auto answer = required(http_order(daemon.admin, "/healthz", std::nullopt, milliseconds(5000)));
  return answer.status;
}

// Every rank's exit status.
std::vector<int> statuses(LocalCluster& cluster) {
  let_end(cluster);
  REQUIRE(cluster.wait_for_trainers(kPatience));
  std::vector<int> codes;
  for (Trainer& trainer : cluster.trainers()) {
    const auto status = required(trainer.process.poll());
    INFO(all_of(trainer.log_file, trainer.log_from));
    CHECK(status.signal == 0);
    codes.push_back(status.code);
  }
  return codes;
}

void terminate(LocalCluster& cluster) {
  for (auto* daemons : {&cluster.workers(), &cluster.servers()}) {
    for (Daemon& d : *daemons) d.process.send_signal(SIGTERM);
  }
  for (auto* daemons : {&cluster.workers(), &cluster.servers()}) {
    for (Daemon& d : *daemons) REQUIRE(d.process.wait(kPatience));
  }
}

ClusterOptions one_server(const TempDir& dir) {
  ClusterOptions options = options_in(dir / "run");
  options.ranks_per_node = 2;
  return options;
}

// A disk for the store of server 0 that has room for the store itself and then no more.
std::unique_ptr<SmallDisk> small_store(const TempDir& dir) {
  fs::create_directories(dir / "run/store-0");
  return SmallDisk::mount(32u << 20, dir / "run/store-0");
}

void check_not_saved(LocalCluster& cluster, const std::string& why) {
  CHECK(statuses(cluster) == std::vector<int>{1, 1});
  for (const nlohmann::json& rank : results(cluster)) CHECK(contains(rank.at("not_saved"), why));
  for (const Trainer& trainer : cluster.trainers()) CHECK(contains(all_of(trainer.log_file), "not saved: " + why));
}

}  // namespace

TEST_CASE("a stop on a full disk: every rank says that nothing is saved and fails, and the next start says round 0") {
  const TempDir dir;
  const auto disk = small_store(dir);
  if (!disk) return;
  // Without snapshots before the stop.
  const std::string job_file =
      write_job(dir, {.name = "full", .rounds = 1'000'000, .extra = "[recovery]\nredo_mb = 0\n"});
  {
    const auto cluster = start(one_server(dir), job_file);
    REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 20; }));
    disk->fill();
    terminate(*cluster);
    check_not_saved(*cluster, "server 0");
    CHECK(contains(results(*cluster)[0].at("not_saved"), "No space left"));
    const std::string log = all_of(cluster->servers()[0].log_file);
    CHECK(contains(log, "error"));
    CHECK(contains(log, "job 'full': the snapshot of round"));
  }
  disk->make_room();
  const auto cluster = start(one_server(dir), job_file, {"train.max_rounds=10"});
  finish_training(*cluster);
  CHECK(statuses(*cluster) == std::vector<int>{0, 0});
  for (const Trainer& trainer : cluster->trainers()) {
    CHECK(contains(all_of(trainer.log_file, trainer.log_from), "starting at round 0"));
  }
  CHECK(cluster->stop().empty());
}

TEST_CASE("a job that ends on a full disk is not saved, its server is not well, and both are once there is room") {
  const TempDir dir;
  const auto disk = small_store(dir);
  if (!disk) return;
  const std::string job_file = write_job(dir, {.name = "end", .rounds = 6000});
  const auto cluster = start(one_server(dir));
  Daemon& server = cluster->servers()[0];
  CHECK(health_of(server) == 200);
  start_trainers(*cluster, job_file);
  REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 20; }));
  disk->fill();
  check_not_saved(*cluster, "server 0");
  CHECK(results(*cluster)[0].at("rounds") == 6000);
  CHECK(health_of(server) == 503);
  CHECK(contains(answer_of(server, "/metrics"), "tributary_server_job_not_saved{job=\"end\"} 6000"));
  nlohmann::json status = status_of(server);
  REQUIRE(status.at("not_saved").size() == 1);
  CHECK(contains(status.at("not_saved").at(0).at("reason"), "No space left"));
  CHECK(contains(status.at("coordinator").at("jobs").at(0).at("not_saved"), "No space left"));
  disk->make_room();
  for (std::uint32_t rank = 0; rank < 2; ++rank) REQUIRE(cluster->restart_trainer(rank));
  CHECK(statuses(*cluster) == std::vector<int>{0, 0});
  CHECK(health_of(server) == 200);
  CHECK_FALSE(contains(answer_of(server, "/metrics"), "tributary_server_job_not_saved{job=\"end\"}"));
  status = status_of(server);
  CHECK(status.at("not_saved").empty());
  CHECK(status.at("coordinator").at("jobs").at(0).at("not_saved") == "");
  // The status of a job that does not run shows its state.
  CHECK(status.at("coordinator").at("jobs").at(0).at("max_version") == 6000);
  CHECK(cluster->stop().empty());
}

TEST_CASE("an all-reduce job whose last checkpoint finds no room is not saved, which every rank of every node says") {
  const TempDir dir;
  fs::create_directories(dir / "run/store-worker-0");
  const auto disk = SmallDisk::mount(4u << 20, dir / "run/store-worker-0");
  if (!disk) return;
  const std::string job_file = write_job(dir, {.name = "ring", .rounds = 1'000'000});
  ClusterOptions options = options_in(dir / "run");
  options.servers = 0;
  options.nodes = 2;
  {
    const auto cluster = start(options, job_file, {"job.mode=\"allreduce\""});
    REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 20; }));
    disk->fill();
    terminate(*cluster);
    check_not_saved(*cluster, "node 0's checkpoint of round");
    CHECK(contains(results(*cluster)[0].at("not_saved"), "No space left"));
    CHECK(contains(results(*cluster)[0].at("not_saved"), "this node has no other"));
  }
  disk->make_room();
  const auto cluster = start(options, job_file, {"job.mode=\"allreduce\"", "train.max_rounds=10"});
  finish_training(*cluster);
  CHECK(statuses(*cluster) == std::vector<int>{0, 0});
  for (const Trainer& trainer : cluster->trainers()) {
    CHECK(contains(all_of(trainer.log_file, trainer.log_from), "going on after round"));  // node 1 has its checkpoint
  }
  CHECK(cluster->stop().empty());
}

TEST_CASE("servers without a store: a job that asks for snapshots fails for it, and one that is stopped") {
  const TempDir dir;
  ClusterOptions options = one_server(dir);
  options.store = false;
  const auto cluster = start(options);
  SUBCASE("it asks") {
    start_trainers(*cluster, write_job(dir, {.name = "asks", .rounds = 30, .snapshot_every_rounds = 10}));
    check_not_saved(*cluster, "server 0 has no store configured");
    CHECK(health_of(cluster->servers()[0]) == 503);
  }
  SUBCASE("it does not ask") {
    start_trainers(*cluster, write_job(dir, {.name = "silent", .rounds = 30}));
    CHECK(statuses(*cluster) == std::vector<int>{0, 0});
    CHECK(health_of(cluster->servers()[0]) == 200);
  }
  SUBCASE("it is stopped, and cannot go on") {
    start_trainers(*cluster,
                   write_job(dir, {.name = "stopped", .rounds = 1'000'000, .snapshot_every_rounds = 1'000'000}));
    REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 20; }));
    cluster->trainers()[0].process.send_signal(SIGTERM);
    check_not_saved(*cluster, "server 0 has no store configured");
  }
  SUBCASE("it is stopped, and was to keep nothing") {
    start_trainers(*cluster, write_job(dir, {.name = "careless", .rounds = 1'000'000}));
    REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 20; }));
    cluster->trainers()[0].process.send_signal(SIGTERM);
    CHECK(statuses(*cluster) == std::vector<int>{75, 75});
    CHECK(health_of(cluster->servers()[0]) == 200);
  }
  CHECK(cluster->stop().empty());
}

TEST_CASE("who asked for a stop is told by every rank, and after a restart of the coordinator") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "who", .chunk_bytes = 8192, .rounds = 1'000'000});
  std::string who;
  std::function<void(LocalCluster&)> stop;
  const auto interrupt = [](LocalCluster& c, std::size_t rank) {
    c.trainers()[rank].process.send_signal(SIGINT);
    std::this_thread::sleep_for(milliseconds(200));
  };
  SUBCASE("a rank that was interrupted") {
    who = "rank 1 was told to stop (SIGINT)";
    stop = [&](LocalCluster& c) { interrupt(c, 1); };
  }
  SUBCASE("twice, and another one after it") {
    who = "rank 1 was told to stop (SIGINT)";
    stop = [&](LocalCluster& c) {
      interrupt(c, 1);
      if (c.trainers()[1].process.running()) interrupt(c, 1);
      if (c.trainers()[3].process.running()) interrupt(c, 3);
    };
  }
  SUBCASE("a worker") {
    who = "worker node-1 was told to stop";
    stop = [](LocalCluster& c) { c.workers()[1].process.send_signal(SIGTERM); };
  }
  SUBCASE("server 0") {
    who = "server 0 was told to stop";
    stop = [](LocalCluster& c) { c.servers()[0].process.send_signal(SIGTERM); };
  }
  SUBCASE("server 1") {
    who = "server 1 was told to stop";
    stop = [](LocalCluster& c) { c.servers()[1].process.send_signal(SIGTERM); };
  }
  const auto cluster = start(two_by_two(dir), job_file);
  REQUIRE(eventually([&] { return job_number(*cluster, "max_version") >= 20; }));
  stop(*cluster);
  CHECK(statuses(*cluster) == std::vector<int>{75, 75, 75, 75});
  for (const nlohmann::json& rank : results(*cluster)) {
    CHECK(rank.at("stopped") == true);
    CHECK(rank.at("stop_reason") == who);
    CHECK(rank.at("not_saved") == "");
  }
  for (const Trainer& trainer : cluster->trainers()) CHECK(contains(all_of(trainer.log_file), ": " + who));
  Daemon& first = cluster->servers()[0];
  first.process.terminate(seconds(20));
  REQUIRE(cluster->restart(first));
  CHECK(status_of(first).at("coordinator").at("jobs").at(0).at("last_stop") == who);
  CHECK(cluster->stop().empty());
}

}  // namespace tributary::e2e::not_saved_test

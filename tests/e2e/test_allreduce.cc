// Jobs of mode "allreduce", with real daemons: without servers, and with servers that have no part in them.
#include <signal.h>

#include "tests/e2e/e2e.h"

namespace tributary::e2e::allreduce_test {
namespace {

constexpr std::uint64_t kRounds = 1200;  // some seconds: long enough to be disturbed in the middle

std::vector<std::string> mode(const std::string& algorithm) {
  return {"job.mode=\"allreduce\"", "allreduce.algorithm=\"" + algorithm + "\""};
}

ClusterOptions nodes_in(const std::string& base_dir, std::uint32_t nodes, std::uint32_t ranks_per_node) {
  return spread(base_dir, {.nodes = nodes, .ranks_per_node = ranks_per_node, .servers = 0});
}

// Trains a job from its beginning to its end on a cluster of its own; the final digest.
std::string digest_of(const ClusterOptions& options, const std::string& job_file,
                      const std::vector<std::string>& overrides) {
  const auto all = trained(options, job_file, overrides);
  CHECK(all[0].at("stopped") == false);
  return all[0].at("digest");
}

// Some checkpoint of the only job is on node 0's disk.
void wait_for_checkpoint(LocalCluster& cluster) {
  REQUIRE(eventually([&] {
    const auto failure = cluster.failure();
    REQUIRE_MESSAGE(!failure, *failure);
    std::error_code error;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(cluster.base_dir() + "/store-worker-0", error)) {
      if (entry.path().filename() == "COMPLETE" && entry.path().parent_path().extension() != ".partial") return true;
    }
    return false;
  }));
}

TEST_CASE("hierarchical all-reduce over two nodes ends in the bits of the same job on servers, for two optimizers") {
  const TempDir dir;
  for (const char* optimizer : {kAdamW, kMomentum}) {
    CAPTURE(optimizer);
    for (const std::uint64_t chunk_bytes : {0, 8192}) {
      CAPTURE(chunk_bytes);
      const std::string job_file = write_job(dir, {.name = "bits", .optimizer = optimizer, .chunk_bytes = chunk_bytes});
      ClusterOptions hybrid = nodes_in(dir / "hybrid", 2, 2);
      hybrid.servers = 2;
      const std::string reference = digest_of(hybrid, job_file, {});
      CHECK(digest_of(nodes_in(dir / "ring", 2, 2), job_file, mode("hierarchical")) == reference);
      CHECK(digest_of(nodes_in(dir / "ring", 2, 1), job_file, mode("hierarchical")) ==
            standalone_digest(dir, job_file, 2));
    }
  }
}

TEST_CASE("on one node all-reduce ends in the bits of the job on servers") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "one"});
  CHECK(digest_of(nodes_in(dir / "run", 1, 4), job_file, mode("hierarchical")) == standalone_digest(dir, job_file, 4));
}

TEST_CASE("flat and wider rings end in the same bits every time") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "again", .chunk_bytes = 8192});
  struct Spread {
    std::uint32_t nodes, ranks;
    const char* algorithm;
  };
  for (const Spread& s : {Spread{1, 4, "flat"}, Spread{2, 2, "flat"}, Spread{4, 1, "hierarchical"}}) {
    CAPTURE(s.nodes);
    CAPTURE(s.algorithm);
    const std::string first = digest_of(nodes_in(dir / "run", s.nodes, s.ranks), job_file, mode(s.algorithm));
    CHECK(digest_of(nodes_in(dir / "run", s.nodes, s.ranks), job_file, mode(s.algorithm)) == first);
  }
}

TEST_CASE("an all-reduce job runs in a cluster with servers, and goes on when a server is killed") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "beside", .rounds = kRounds});
  const std::string reference = standalone_digest(dir, job_file, 2);
  ClusterOptions options = nodes_in(dir / "run", 2, 1);
  options.servers = 2;
  const auto cluster = start(options, job_file, mode("hierarchical"));
  wait_for(*cluster, "max_version", 10);
  for (const Daemon& worker : cluster->workers()) {
    const nlohmann::json jobs = status_of(worker).at("jobs");
    REQUIRE(jobs.size() == 1);
    CHECK(jobs[0].at("transport") == "gloo");  // trainers on the CPU: nobody has to say why
    CHECK_FALSE(jobs[0].contains("why_host"));
    CHECK(has(log_of(worker), "ranks are added up by Gloo"));
  }
  cluster->servers()[1].process.terminate(milliseconds(0));
  let_end(*cluster);
  REQUIRE(cluster->wait_for_trainers(kPatience));
  const auto all = results(*cluster);
  CHECK(all[0].at("digest") == reference);
  CHECK(all[0].at("restarts") == 0);
}

TEST_CASE(
    "all-reduce: SIGTERM to every daemon in the middle, and the same again, ends in the bits of an undisturbed "
    "run") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "stop", .chunk_bytes = 8192, .rounds = kRounds});
  const std::string reference = standalone_digest(dir, job_file, 4);
  std::uint64_t stopped_at = 0;
  {
    const auto cluster = start(nodes_in(dir / "run", 2, 2), job_file, mode("hierarchical"));
    wait_for(*cluster, "max_version", 100);
    for (Daemon& d : cluster->workers()) d.process.send_signal(SIGTERM);
    for (Daemon& d : cluster->workers()) {
      const auto status = d.process.wait(kPatience);
      INFO(d.name << ":\n" << last_lines(d.log_file, 15, d.log_from));
      REQUIRE(status);
      CHECK(status->describe() == "exited with status 0");
    }
    REQUIRE(cluster->wait_for_trainers(kPatience));
    const auto all = results(*cluster);
    CHECK(all[0].at("stopped") == true);
    stopped_at = all[0].at("rounds");
    CHECK(stopped_at >= 100);
    CHECK(stopped_at < kRounds);
    CHECK(cluster->stop().empty());
  }
  const auto cluster = start(nodes_in(dir / "run", 2, 2), job_file, mode("hierarchical"));
  const auto all = finished(*cluster);
  CHECK(cluster->stop().empty());
  CHECK(all[0].at("resumed_from") == stopped_at);
  CHECK(all[0].at("rounds") == kRounds);
  CHECK(all[0].at("digest") == reference);
}

TEST_CASE("all-reduce: a killed trainer is named to the others, a new one attaches and all go on from a checkpoint") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "rank", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 40});
  const std::string reference = standalone_digest(dir, job_file, 4);
  const auto cluster = start(nodes_in(dir / "run", 2, 2), job_file, mode("hierarchical"));
  wait_for_checkpoint(*cluster);
  const pid_t pid = cluster->trainers()[3].process.pid();
  cluster->trainers()[3].process.terminate(milliseconds(0));
  restart_trainer(*cluster, 3);
  const auto all = finished(*cluster);
  CHECK(all[0].at("restarts").get<int>() >= 1);
  CHECK(all[3].at("resumed_from").get<std::uint64_t>() >= 40);
  CHECK(all[0].at("digest") == reference);
  // On the other node, too.
  CHECK(has(log_of(cluster->workers()[0]), "trainer rank 3 (pid " + std::to_string(pid) + ") on node 1 died"));
  CHECK(cluster->stop().empty());
}

TEST_CASE(
    "all-reduce: a killed worker, also node 0's with coordinator and checkpoints, is replaced, and all end in the same "
    "bits") {
  struct Victim {
    std::size_t node;
    std::vector<std::string> words;  // of the other node's log
  };
  for (const Victim& victim : {Victim{1, {"node-1", "node 1"}}, Victim{0, {"(resumed)"}}}) {
    CAPTURE(victim.node);
    const TempDir dir;
    const std::string job_file =
        write_job(dir, {.name = "node", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 40});
    const std::string reference = standalone_digest(dir, job_file, 4);
    const auto cluster = start(nodes_in(dir / "run", 2, 2), job_file, mode("hierarchical"));
    wait_for_checkpoint(*cluster);
    survive_kill_of(*cluster, cluster->workers()[victim.node], reference);
    for (const std::string& words : victim.words) CHECK(has(log_of(cluster->workers()[1 - victim.node]), words));
  }
}

TEST_CASE("a job of mode sync in a cluster without servers is refused with what would help") {
  const TempDir dir;
  const auto cluster = start(nodes_in(dir / "run", 1, 1), write_job(dir, {.name = "sync"}));
  REQUIRE(cluster->wait_for_trainers(kPatience));
  const auto failure = cluster->failure();
  REQUIRE(failure);
  CHECK(has(*failure, "this cluster has no servers"));
  CHECK(has(*failure, "job.mode = \"allreduce\""));
  CHECK(cluster->stop().empty());
}

TEST_CASE("all-reduce: a typing error in the algorithm, and an encoding, are refused before anything trains") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "wrong"});
  const auto said = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> argv = {bin("tributary"), "up", job_file, "--base-dir", dir / "run"};
    for (const std::string& value : overrides) argv.insert(argv.end(), {"--set", value});
    const Outcome up = run(argv);
    CHECK(up.status == 2);
    return up.text;
  };
  const std::string typo = said({"job.mode=\"allreduce\"", "allreduce.algorithm=\"hierachical\""});
  CHECK(has(typo, "allreduce.algorithm"));
  CHECK(has(typo, "flat or hierarchical"));
  const std::string encoded = said({"job.mode=\"allreduce\"", "encoding.push=\"int8\""});
  CHECK(has(encoded, "encoding.push"));
  CHECK(has(encoded, "must be fp32 with mode \"allreduce\""));
  const std::string servers = said({"allreduce.algorithm=\"flat\""});
  CHECK(has(servers, "mode \"sync\" has no all-reduce"));
  CHECK_FALSE(std::filesystem::exists(dir / "run"));
}

TEST_CASE("a worker whose coordinator nobody serves says so, and its trainers end with what to look at") {
  const TempDir dir;
  const std::string config = dir / "worker.toml", log = dir / "worker.log", socket = dir / "worker.sock";
  const std::string coordinator = "ipc://" + (dir / "coordinator");
  std::ofstream(config) << "[worker]\ncoordinator = \"" << coordinator << "\"\nsocket = \"" << socket
                        << "\"\nadmin = \"\"\n[limits]\nheartbeat_ms = 100\npeer_timeout_ms = 500\n";
  auto worker = Process::spawn({.argv = {bin("tributary-worker"), "--config", config}, .log_file = log});
  REQUIRE(worker);
  REQUIRE(eventually([&] { return has(last_lines(log, 15), "waiting for the coordinator at " + coordinator); }));
  REQUIRE(eventually(
      [&] { return has(last_lines(log, 15), "the coordinator at " + coordinator + " has not been heard"); }));
  CHECK(has(last_lines(log, 15), "serve_coordinator"));
  CHECK_FALSE(has(last_lines(log, 15), "ready {"));
}

TEST_CASE("two workers that serve the coordinator at one address: the second does not start and says why") {
  const TempDir dir;
  const auto cluster = start(nodes_in(dir / "run", 1, 1));
  const std::string config = dir / "second.toml", log = dir / "second.log";
  std::ofstream(config) << "[worker]\ncoordinator = \"" << cluster->coordinator() << "\"\nsocket = \""
                        << (dir / "second.sock") << "\"\nadmin = \"\"\nserve_coordinator = true\n";
  const std::string said = refusal_of("tributary-worker", config, log);
  CHECK(has(said, cluster->coordinator()));
  CHECK(has(said, "only one worker of the cluster"));
}

TEST_CASE("tributary up trains an all-reduce job without servers, and status shows it") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "tool", .rounds = kRounds, .extra = "[allreduce]\nalgorithm = \"flat\"\n"});
  auto up = Process::spawn({.argv = {bin("tributary"), "up", job_file, "--set", "job.mode=\"allreduce\"", "--nodes",
                                     "2", "--ranks-per-node", "2", "--base-dir", dir / "run", "--json"},
                            .log_file = dir / "log"});
  REQUIRE(up);
  std::string shown;
  REQUIRE(eventually([&] {
    shown = run({bin("tributary"), "status", "--base-dir", dir / "run"}).text;
    return has(shown, "running") && has(shown, "node-1");
  }));
  CHECK(has(shown, "tool"));
  CHECK(has(shown, "2 of 2"));
  CHECK_FALSE(has(shown, "SERVER"));
  const auto ended = up->wait(kPatience);
  REQUIRE(ended);
  const std::string said = last_lines(dir / "log", 60);
  INFO(said);
  CHECK(ended->ok());
  CHECK(has(said, "0 servers, 2 nodes x 2 ranks"));
  CHECK(has(said, "(in worker 0)"));
  CHECK(has(said, "\"completed\":true"));
  CHECK(has(said, "\"servers\":[]"));
}

TEST_CASE("tributary up of a job on servers without any is refused") {
  const TempDir dir;
  const Outcome up =
      run({bin("tributary"), "up", write_job(dir, {.name = "none"}), "--servers", "0", "--base-dir", dir / "run"});
  CHECK(up.status == 2);
  CHECK(has(up.text, "--servers 0"));
}

}  // namespace
}  // namespace tributary::e2e::allreduce_test

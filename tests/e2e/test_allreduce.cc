// Jobs of mode "allreduce", with real daemons: without servers, and with servers that have no part in them.
#include <signal.h>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

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
    CHECK(contains(log_of(worker), "ranks are added up by Gloo"));
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
  stop_and_resume(nodes_in(dir / "run", 2, 2), job_file, kRounds, standalone_digest(dir, job_file, 4),
                  mode("hierarchical"), [&] {
                    const std::string shown = run({bin("tributary"), "status", "--base-dir", dir / "run"}).text;
                    CHECK(contains(shown, "running"));
                    CHECK(contains(shown, "node-1"));
                    CHECK_FALSE(contains(shown, "SERVER"));
                  });
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
  CHECK(contains(log_of(cluster->workers()[0]), "trainer rank 3 (pid " + std::to_string(pid) + ") on node 1 died"));
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
    for (const std::string& words : victim.words) CHECK(contains(log_of(cluster->workers()[1 - victim.node]), words));
  }
}

TEST_CASE("a worker whose coordinator nobody serves says so, and its trainers end with what to look at") {
  const TempDir dir;
  const std::string config = dir / "worker.toml", log = dir / "worker.log", socket = dir / "worker.sock";
  const std::string coordinator = "ipc://" + (dir / "coordinator");
  std::ofstream(config) << "[worker]\ncoordinator = \"" << coordinator << "\"\nsocket = \"" << socket
                        << "\"\nadmin = \"\"\n[limits]\nheartbeat_ms = 100\npeer_timeout_ms = 500\n";
  const auto worker =
      required(Process::spawn({.argv = {bin("tributary-worker"), "--config", config}, .log_file = log}));
  REQUIRE(eventually([&] { return contains(last_lines(log, 15), "waiting for the coordinator at " + coordinator); }));
  REQUIRE(eventually(
      [&] { return contains(last_lines(log, 15), "the coordinator at " + coordinator + " has not been heard"); }));
  CHECK(contains(last_lines(log, 15), "serve_coordinator"));
  CHECK_FALSE(contains(last_lines(log, 15), "ready {"));
}

TEST_CASE("two workers that serve the coordinator at one address: the second does not start and says why") {
  const TempDir dir;
  const auto cluster = start(nodes_in(dir / "run", 1, 1));
  const std::string config = dir / "second.toml", log = dir / "second.log";
  std::ofstream(config) << "[worker]\ncoordinator = \"" << cluster->coordinator() << "\"\nsocket = \""
                        << (dir / "second.sock") << "\"\nadmin = \"\"\nserve_coordinator = true\n";
  const std::string said = refusal_of("tributary-worker", config, log);
  CHECK(contains(said, cluster->coordinator()));
  CHECK(contains(said, "only one worker of the cluster"));
}

TEST_CASE("tributary up starts no servers for an all-reduce job, and refuses to start none for a job on servers") {
  const TempDir dir;
  const auto up = [&](const std::string& job_file, const std::string& option, const std::string& value) {
    return run({bin("tributary"), "up", job_file, option, value, "--base-dir", dir / "run"});
  };
  const Outcome ring = up(write_job(dir, {.name = "ring", .mode = "allreduce"}), "--nodes", "2");
  CHECK(ring.status == 0);
  CHECK(contains(ring.text, "0 servers, 2 nodes x 1 rank"));
  CHECK(contains(ring.text, "(in worker 0)"));
  const Outcome none = up(write_job(dir, {.name = "none"}), "--servers", "0");
  CHECK(none.status == 2);
  CHECK(contains(none.text, "--servers 0"));
}

}  // namespace
}  // namespace tributary::e2e::allreduce_test

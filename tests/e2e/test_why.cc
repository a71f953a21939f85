// Stalls that are caused on purpose: the one answer names each of them.
#include <signal.h>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::why_test {
namespace {

std::string why(LocalCluster& cluster) {
  const nlohmann::json jobs = status_of(cluster.coordinator_daemon()).at("coordinator").at("jobs");
  return jobs.empty() ? "" : jobs.at(0).at("why_no_round").get<std::string>();
}

// Stops a process for as long as this object lives.
class Stopped {
 public:
  explicit Stopped(const Process& process) : pid_(process.pid()) { ::kill(pid_, SIGSTOP); }
  ~Stopped() { ::kill(pid_, SIGCONT); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

 private:
  const pid_t pid_;
};

}  // namespace

TEST_CASE(
    "a trainer, a worker and a server that stand still are named within ten seconds, and the job goes on after them") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "why", .chunk_bytes = 4096, .rounds = 1'000'000});
  ClusterOptions options = two_by_two(dir);
  options.ranks_per_node = 1;
  options.peer_timeout_ms = 20'000;
  const auto cluster = start(options, job_file);
  wait_for(*cluster, "max_version", 20);
  CHECK(why(*cluster).empty());
  const auto names = [&](const Process& process, const std::string& words) {
    const std::uint64_t round = job_number(*cluster, "max_version");
    {
      const Stopped stopped(process);
      CHECK_MESSAGE(eventually([&] { return contains(why(*cluster), words); }, seconds(12)),
                    words << " but: " << why(*cluster));
    }
    wait_for(*cluster, "max_version", round + 20);
    CHECK(eventually([&] { return why(*cluster).empty(); }, seconds(12)));
  };
  names(cluster->trainers()[1].process, "rank 1 (node 1) has not given all gradients of round");
  names(cluster->workers()[1].process, "node 1 (worker node-1) (");
  names(cluster->servers()[1].process, "server 1 (");
  const std::string log = last_lines(cluster->servers()[0].log_file, 1000);
  CHECK(contains(log, "has had no round for 5 s: rank 1 (node 1)"));
  CHECK(contains(log, " s without a round"));
  CHECK(job_number(*cluster, "view") == 1);
}

TEST_CASE("a machine whose clock is an hour off is named with it, and joins all the same") {
  std::string faked;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/lib")) {
    const std::filesystem::path library = entry.path() / "faketime/libfaketimeMT.so.1";
    if (std::filesystem::exists(library)) faked = library.string();
  }
  REQUIRE_MESSAGE(!faked.empty(), "Debian's package libfaketime is not installed");
  const TempDir dir;
  const auto cluster = start(two_by_two(dir));
  std::ofstream(dir / "late.toml") << "[worker]\ncoordinator = \"" << cluster->coordinator()
                                   << "\"\nname = \"late\"\nsocket = \"" << (dir / "late.sock")
                                   << "\"\nlanes = 1\nadmin = \"\"\n[limits]\nheartbeat_ms = 100\n";
  auto late = required(Process::spawn(
      {.argv = {bin("tributary-worker"), "--config", dir / "late.toml"},
       .log_file = dir / "late.log",
       .environment = {{"LD_PRELOAD", faked}, {"FAKETIME", "-1h"}, {"FAKETIME_DONT_FAKE_MONOTONIC", "1"}}}));
  const auto clock = [&] {
    const nlohmann::json status = status_of(cluster->coordinator_daemon());
    for (const auto& peer : status.at("coordinator").at("peers")) {
      if (peer.at("name") == "late") return peer.at("clock").get<std::string>();
      CHECK(peer.at("clock") == "");
    }
    return std::string();
  };
  CHECK(eventually([&] { return contains(clock(), "s behind the coordinator's"); }, seconds(10)));
  CHECK(contains(last_lines(cluster->servers()[0].log_file, 100), "the clock of worker late is 3"));
  late.terminate(milliseconds(0));
}

TEST_CASE("jobs are listed and stopped by their names, with the token alone") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "named", .rounds = 1'000'000});
  const auto cluster = start(two_by_two(dir));
  const auto tool = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {bin("tributary"), "job"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const Outcome ended = run(argv);
    return std::to_string(ended.status) + ":  " + ended.text;
  };
  CHECK(contains(tool({"list", "--base-dir", dir / "run"}), "0:  no job is known"));
  start_trainers(*cluster, job_file);
  wait_for(*cluster, "max_version", 20);
  CHECK(contains(tool({"list", "--base-dir", dir / "run"}), "named"));
  CHECK(contains(tool({"stop", "other", "--base-dir", dir / "run"}),
                 "1:  tributary job: nobody in the cluster has a job 'other'"));
  const std::string admin = cluster->servers()[0].admin;
  CHECK(contains(tool({"stop", "named", "--coordinator-admin", admin}), "this needs the header"));
  CHECK(cluster->trainers_running());
  CHECK(contains(tool({"stop", "named", "--coordinator-admin", admin, "--token", dir / "run/admin.token"}),
                 "0:  stopped job 'named'; saved is round "));
  REQUIRE(cluster->wait_for_trainers(kPatience));
  CHECK(contains(last_lines(cluster->trainers()[0].log_file, 20), "an operator asked for it"));
  CHECK(contains(tool({"stop", "named", "--base-dir", dir / "run"}), "does not run"));
}

TEST_CASE("ranks that are missing at the start are named to those that wait, and in the status") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "missing", .rounds = 20});
  ClusterOptions options = two_by_two(dir);
  const auto cluster = start(options);
  const auto command = cluster->train_command(job_file, {}, {"--json"});
  REQUIRE(cluster->start_trainers({.command = command, .progress_socket = {}, .nodes = {0}, .world_nodes = 2}));
  const auto says = [&](std::size_t trainer, const std::string& words) {
    return eventually([&] { return contains(last_lines(cluster->trainers()[trainer].log_file, 100), words); });
  };
  CHECK(says(0, "waiting for node 1, "));
  CHECK(status_of(cluster->coordinator_daemon()).at("coordinator").at("jobs").at(0).at("waiting_for") == "node 1");
  REQUIRE(cluster->start_trainers({.command = command, .progress_socket = {}, .nodes = {1}, .world_nodes = 2}));
  finish_training(*cluster);
}

TEST_CASE("a node that may not join with its configuration is named with the reason to those that wait for it") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "odd", .rounds = 20});
  const auto cluster = start(two_by_two(dir));
  const auto starts = [&](std::uint32_t node, const std::vector<std::string>& overrides) {
    const auto command = cluster->train_command(job_file, overrides, {"--json"});
    REQUIRE(cluster->start_trainers({.command = command, .progress_socket = {}, .nodes = {node}, .world_nodes = 2}));
  };
  const auto says = [&](std::size_t trainer, const std::string& words) {
    return eventually([&] { return contains(last_lines(cluster->trainers()[trainer].log_file, 100), words); },
                      seconds(20));
  };
  starts(0, {});
  CHECK(says(0, "waiting for node 1, "));
  starts(1, {"optimizer.lr=0.5"});
  CHECK(says(2, "optimizer.lr"));
  const std::string why = "node 1 was refused: job 'odd' was opened with another configuration than that of node 1: ";
  CHECK(says(0, why));
  const auto job = status_of(cluster->coordinator_daemon()).at("coordinator").at("jobs").at(0);
  CHECK(contains(job.at("waiting_for"), why));
}

}  // namespace tributary::e2e::why_test

// A job with a trainer that writes nonsense into all memory that it shares with its worker, while rounds continue: the
// daemons survive, and another job on them ends in its bits. TRIBUTARY_HOSTILE_SECONDS: the least duration of each case
// (2).
#include <cstdlib>
#include <sstream>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::hostile_test {
namespace {

seconds duration() {
  const char* said = std::getenv("TRIBUTARY_HOSTILE_SECONDS");
  return seconds(said ? std::atoi(said) : 2);
}

struct Trainers {
  LocalCluster& cluster;
  std::vector<std::string> job;  // its name, mode and encodings
  std::string log_folder;
  Process processes[2] = {};

  std::string log_of(std::uint32_t node) const { return log_folder + "/hostile-" + std::to_string(node) + ".log"; }
  // Restarts missing trainers: the hostile rank's writes may well end itself.
  void keep_up() {
    for (std::uint32_t node = 0; node < 2; ++node) {
      if (processes[node].running()) continue;
      std::vector<std::string> argv = {bin("hostile_trainer"), cluster.workers()[node].socket};
      argv.insert(argv.end(), job.begin(), job.end());
      argv.insert(argv.end(), {std::to_string(node), node == 0 ? "hostile" : "honest"});
      auto process = required(Process::spawn({.argv = argv, .log_file = log_of(node)}));
      processes[node] = std::move(process);
    }
  }
  void end() {
    for (Process& process : processes) process.terminate(milliseconds(0));
  }
  // Deeds of the hostile rank in all of its views.
  struct Done {
    std::uint64_t views = 0, rounds = 0, writes = 0;
  };
  Done done() const {
    Done all;
    std::ifstream log(log_of(0));
    for (std::string line; std::getline(log, line);) {
      unsigned long long rounds = 0, writes = 0;
      if (std::sscanf(line.c_str(), "rounds %llu writes %llu", &rounds, &writes) != 2) continue;
      ++all.views;
      all.rounds += rounds;
      all.writes += writes;
    }
    return all;
  }
};

void check_daemons(LocalCluster& cluster) {
  const auto failure = cluster.failure();
  REQUIRE_MESSAGE(!failure, *failure);
}

// Kills a server, whose pushes its nodes make again from what they kept, and a worker, the next of which takes that
// over from its trainers.
void lose(LocalCluster& cluster, const std::string& job, Trainers& hostile) {
  const auto reached = [&](std::uint64_t round) {
    check_daemons(cluster);
    hostile.keep_up();
    const nlohmann::json status = status_of(cluster.coordinator_daemon());
    for (const auto& each : status.at("coordinator").at("jobs")) {
      if (each.at("name") == job && each.at("max_version").is_number()) return each.at("max_version") >= round;
    }
    return false;
  };
  std::uint64_t round = 0;
  for (Daemon* daemon : {&cluster.servers()[1], &cluster.workers()[0]}) {
    round += 200;
    REQUIRE(eventually([&] { return reached(round); }));
    daemon->process.terminate(milliseconds(0));
    restart(cluster, *daemon);
  }
}

// Lines of the coordinator's log about a job.
std::string said_of(LocalCluster& cluster, const std::string& job) {
  std::ifstream log(cluster.coordinator_daemon().log_file);
  std::string text;
  for (std::string line; std::getline(log, line);) {
    if (contains(line, "'" + job + "'")) text += line + "\n";
  }
  return text;
}

enum class Losses { kNone, kSome };

void suffer(const std::string& mode, const std::string& push, const std::string& pull, Losses losses = Losses::kNone) {
  const TempDir dir;
  Job beside{.name = "beside", .chunk_bytes = 8192, .rounds = losses == Losses::kNone ? 100u : 4000u};
  beside.extra = "\n[encoding]\npush = \"topk:0.05\"\npull = \"int8-delta\"\n";
  const std::string reference = standalone_digest(dir, write_job(dir, beside), 2, 2);
  ClusterOptions options = options_in(dir / "run");
  options.servers = options.lanes = 2;
  options.nodes = 2;
  options.peer_timeout_ms = 60'000;  // a view ends for the trainer's deeds, not for a busy machine
  const auto cluster = start(options);
  Trainers hostile{*cluster, {"hostile", mode, push, pull}, dir / "run"};
  hostile.keep_up();
  const auto until = std::chrono::steady_clock::now() + duration();
  int jobs = 0;
  do {
    beside.name = "beside-" + std::to_string(jobs++);
    start_trainers(*cluster, write_job(dir, beside));
    if (losses == Losses::kSome) lose(*cluster, beside.name, hostile);
    let_end(*cluster);
    REQUIRE(eventually(
        [&] {
          check_daemons(*cluster);
          hostile.keep_up();
          return !cluster->trainers_running();
        },
        2 * kPatience));
    const auto all = results(*cluster);
    CHECK(all[0].at("digest") == reference);
    if (losses == Losses::kNone) CHECK_MESSAGE(all[0].at("restarts") == 0, said_of(*cluster, beside.name));
  } while (std::chrono::steady_clock::now() < until);
  // Some views at least, of which most have rounds.
  REQUIRE(eventually([&] {
    check_daemons(*cluster);
    hostile.keep_up();
    return hostile.done().views >= 2 && hostile.done().rounds > 0;
  }));
  const Trainers::Done done = hostile.done();
  hostile.end();
  MESSAGE(mode << ", " << push << ", " << pull << ": " << jobs << " jobs beside " << done.views
               << " hostile views with " << done.rounds << " rounds and " << done.writes << " writes");
  CHECK(done.writes > 0);
  check_daemons(*cluster);
  CHECK(cluster->stop().empty());
}

TEST_CASE("a hostile trainer hurts its own job alone: fp32") {
  suffer("sync", "fp32", "fp32");
}
TEST_CASE("a hostile trainer hurts its own job alone: bf16") {
  suffer("sync", "bf16", "bf16");
}
TEST_CASE("a hostile trainer hurts its own job alone: fp16") {
  suffer("sync", "fp16", "fp16");
}
TEST_CASE("a hostile trainer hurts its own job alone: int8 and its delta") {
  suffer("sync", "int8", "int8-delta");
}
TEST_CASE("a hostile trainer hurts its own job alone: onebit") {
  suffer("sync", "onebit", "int8-delta");
}
TEST_CASE("a hostile trainer hurts its own job alone: topk") {
  suffer("sync", "topk:0.05", "fp32");
}
TEST_CASE("a hostile trainer hurts its own job alone: topk, while a server and a worker are lost") {
  suffer("sync", "topk:0.05", "fp32", Losses::kSome);
}
TEST_CASE("a hostile trainer hurts its own job alone: onebit, while a server and a worker are lost") {
  suffer("sync", "onebit", "int8-delta", Losses::kSome);
}
TEST_CASE("a hostile trainer hurts its own job alone: clocks") {
  suffer("async", "fp16", "bf16");
}
TEST_CASE("a hostile trainer hurts its own job alone: all-reduce") {
  suffer("allreduce", "fp32", "fp32");
}

}  // namespace
}  // namespace tributary::e2e::hostile_test

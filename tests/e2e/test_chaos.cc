// kill -9 of daemons while a job trains, by `tributary chaos`.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/tool_call.h"

namespace tributary::chaos_test {

using namespace e2e;

namespace {

// Returns the tool's report of a storm after which the bits are a calm run's.
nlohmann::json survives(const TempDir& dir, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"chaos", "--json", "--base-dir", dir / "run"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const auto result = report_of(dir, all, seconds(180));
  CHECK(result.at("same") == true);
  CHECK(result.at("digest") == result.at("calm_digest"));
  return result;
}

}  // namespace

TEST_CASE("whoever is killed, the job goes on where it was and ends in the bits of a calm run") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "storm", .chunk_bytes = 8192, .rounds = 0});
  // Rounds long enough for snapshots to follow, most of the time: what is trained meanwhile fits a ring.
  const auto result =
      survives(dir, {job_file, "--kills", "12", "--seed", "2", "--pause", "0.8", "--set", "train.global_batch=512",
                     "--set", "train.hidden=[512,256]", "--set", "recovery.redo_mb=512"});
  CHECK(result.at("kills").get<int>() >= 12);
  // A lost worker takes no complete round with it. Nor does a lost server, where snapshots could follow.
  bool servers_lost = false, nothing_lost = false;
  for (const auto& strike : result.at("strikes")) {
    const bool server = strike.at("killed").dump().find("server") != std::string::npos;
    if (!server) CHECK(strike.at("recomputed") == 0);
    servers_lost = servers_lost || server;
    nothing_lost = nothing_lost || (server && strike.at("recomputed") == 0);
  }
  CHECK(servers_lost);
  CHECK(nothing_lost);
}

TEST_CASE(
    "parameters in any encoding, in shared memory or over sockets: whoever is killed, the bits are a calm run's") {
  struct Way {
    const char* pull;
    const char* transport;
  };
  for (const Way& way :
       {Way{"bf16", "shm"}, Way{"fp16", "shm"}, Way{"int8-delta", "shm"}, Way{"fp32", "tcp"}, Way{"bf16", "tcp"}}) {
    CAPTURE(way.pull);
    CAPTURE(way.transport);
    const TempDir dir;
    const std::string job_file = write_job(dir, {.name = "storm", .chunk_bytes = 8192, .rounds = 0});
    const auto result = survives(dir, {job_file, "--kills", "3", "--seed", "4", "--pause", "0.2", "--set",
                                       std::string("encoding.pull=") + way.pull, "--transport", way.transport});
    CHECK(result.at("kills").get<int>() >= 3);
  }
}

TEST_CASE("disks and coordinators that are lost for good: the bits are a calm run's") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "storm", .chunk_bytes = 8192, .rounds = 0});
  const auto result = survives(dir, {job_file, "--kills", "5", "--seed", "3", "--pause", "0.3", "--lose-disks", "2",
                                     "--lose-coordinators", "1"});
  CHECK(result.at("lost_disks") == 2);
  CHECK(result.at("lost_coordinators") == 1);
}

TEST_CASE("chaos is for jobs that must end in the same bits, and says so") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "ring", .chunk_bytes = 8192, .rounds = 10});
  const Outcome refused = run({bin("tributary"), "chaos", job_file, "--set", "job.mode=allreduce"});
  CHECK(refused.status == 2);
  CHECK(contains(refused.text, "job.mode=sync"));
}

}  // namespace tributary::chaos_test

// kill -9 of daemons while a job trains, by `tributary chaos`.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/e2e.h"

namespace tributary::chaos_test {

using namespace e2e;

TEST_CASE("whoever is killed, the job goes on where it was and ends in the bits of a calm run") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "storm", .chunk_bytes = 8192, .rounds = 0});
  const std::string log = dir / "chaos.log", out = dir / "chaos.json";
  // Rounds long enough for snapshots to follow, most of the time: what is trained meanwhile fits a ring.
  const std::string command = bin("tributary") + " chaos " + job_file +
                              " --kills 12 --seed 2 --pause 0.8 --json --set train.global_batch=512 --set "
                              "train.hidden=[512,256] --set recovery.redo_mb=512 --base-dir " +
                              (dir / "run") + " > " + out;
  auto process = Process::spawn({.argv = {"/bin/sh", "-c", command}, .log_file = log});
  REQUIRE_MESSAGE(process, process.error().message);
  const auto status = process->wait(std::chrono::milliseconds(180'000));
  INFO(last_lines(log, 40));
  REQUIRE(status);
  REQUIRE(status->ok());
  std::ifstream in(out);
  const auto result = nlohmann::json::parse(in);
  CHECK(result.at("same") == true);
  CHECK(result.at("kills").get<int>() >= 12);
  CHECK(result.at("digest") == result.at("calm_digest"));
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
    const std::string log = dir / "chaos.log", out = dir / "chaos.json";
    const std::string command = bin("tributary") + " chaos " + job_file + " --kills 3 --seed 4 --pause 0.2 --json" +
                                " --set encoding.pull=" + way.pull + " --transport " + way.transport + " --base-dir " +
                                (dir / "run") + " > " + out;
    auto process = Process::spawn({.argv = {"/bin/sh", "-c", command}, .log_file = log});
    REQUIRE_MESSAGE(process, process.error().message);
    const auto status = process->wait(std::chrono::milliseconds(180'000));
    INFO(last_lines(log, 40));
    REQUIRE(status);
    REQUIRE(status->ok());
    std::ifstream in(out);
    const auto result = nlohmann::json::parse(in);
    CHECK(result.at("same") == true);
    CHECK(result.at("kills").get<int>() >= 3);
    CHECK(result.at("digest") == result.at("calm_digest"));
  }
}

TEST_CASE("chaos is for jobs that must end in the same bits, and says so") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "ring", .chunk_bytes = 8192, .rounds = 10});
  const std::string log = dir / "chaos.log";
  auto process =
      Process::spawn({.argv = {bin("tributary"), "chaos", job_file, "--set", "job.mode=allreduce"}, .log_file = log});
  REQUIRE(process);
  const auto status = process->wait(kPatience);
  REQUIRE(status);
  CHECK(status->code == 2);
  CHECK(last_lines(log, 5).find("job.mode=sync") != std::string::npos);
}

}  // namespace tributary::chaos_test

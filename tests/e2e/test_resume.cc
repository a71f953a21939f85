// Stops and losses in the middle of a job: it continues where it was, and ends in the bits of an undisturbed run.
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/e2e/e2e.h"

namespace tributary::e2e::resume_test {
namespace {

constexpr std::uint64_t kRounds = 3000;  // some seconds: long enough to be disturbed in the middle

TEST_CASE(
    "SIGTERM to every daemon in the middle of a job, and the same again, ends in the bits of an undisturbed run") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "stop", .chunk_bytes = 8192, .rounds = kRounds});
  stop_and_resume(two_by_two(dir), job_file, kRounds, standalone_digest(dir, job_file, 4));
}

TEST_CASE("a server or a worker that is killed and started again: the trainers attach again and end in the same bits") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "again", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 40});
  const std::string reference = standalone_digest(dir, job_file, 4);
  for (const bool worker : {false, true}) {
    for (const Transport transport : {Transport::kShm, Transport::kTcp}) {
      CAPTURE(worker);
      CAPTURE(transport_name(transport));
      const auto cluster = start(afresh(spread(dir / "run", {.transport = transport})), job_file);
      REQUIRE(eventually([&] { return job_number(*cluster, "committed") >= 40; }));
      survive_kill_of(*cluster, (worker ? cluster->workers() : cluster->servers())[1], reference);
    }
  }
}

TEST_CASE("a trainer that is killed is noticed, a new one for its rank attaches and all end in the same bits") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "rank", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 40});
  const std::string reference = standalone_digest(dir, job_file, 4);
  const auto cluster = start(two_by_two(dir), job_file);
  REQUIRE(eventually([&] { return job_number(*cluster, "committed") >= 40; }));
  cluster->trainers()[3].process.terminate(milliseconds(0));
  restart_trainer(*cluster, 3);
  const auto all = finished(*cluster);
  CHECK(all[0].at("restarts").get<int>() >= 1);
  CHECK(all[3].at("resumed_from").get<std::uint64_t>() >= 40);
  CHECK(all[0].at("digest") == reference);
  // Nodes had their parameters, and servers need not send them again. A node whose answers were all on their way, or were
  // all a round further on, had none at that round: but then the other one had.
  std::vector<char> had;
  for (const Daemon& worker : cluster->workers()) {
    const std::string log = log_of(worker);
    const std::string words = "all parameters are here: ";
    CHECK(contains(log, words + "0 bytes were here before"));  // in the first view
    const std::size_t last = log.rfind(words);
    REQUIRE(last != std::string::npos);
    had.push_back(log[last + words.size()]);
  }
  CHECK(std::ranges::any_of(had, [](char first_digit) { return first_digit != '0'; }));
  CHECK(cluster->stop().empty());
}

}  // namespace
}  // namespace tributary::e2e::resume_test

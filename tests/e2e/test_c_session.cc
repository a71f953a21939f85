// A trainer in C (examples/session.c) over libtributary.so: it trains, survives a lost daemon, and continues after a
// stop.
#include <array>
#include <sstream>

#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::c_session_test {
namespace {

constexpr int kRanks = 4;

struct Rank {
  Process process;
  std::string log;
};

std::array<Rank, kRanks> start_ranks(const TempDir& dir, LocalCluster& cluster, const std::string& rounds) {
  std::array<Rank, kRanks> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks[rank].log = dir / ("rank-" + std::to_string(rank) + ".log");
    std::filesystem::remove(ranks[rank].log);
    auto process =
        required(Process::spawn({.argv = {bin("example_session"), rounds},
                                 .log_file = ranks[rank].log,
                                 .environment = {{"RANK", std::to_string(rank)},
                                                 {"WORLD_SIZE", std::to_string(kRanks)},
                                                 {"LOCAL_RANK", std::to_string(rank % 2)},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"GROUP_RANK", std::to_string(rank / 2)},
                                                 {"TRIBUTARY_SOCKET", cluster.workers()[rank / 2].socket}}}));
    ranks[rank].process = std::move(process);
  }
  return ranks;
}

struct Outcome {
  std::uint64_t round = 0;
  double loss = 0.0;
};

// Returns the last line of output, which must be the same for all ranks.
Outcome outcome_of(std::array<Rank, kRanks>& ranks, int exit_code) {
  std::string first;
  for (Rank& rank : ranks) {
    const auto status = rank.process.wait(kPatience);
    INFO(last_lines(rank.log, 15));
    REQUIRE(status);
    REQUIRE(status->signal == 0);
    REQUIRE(status->code == exit_code);
    std::ifstream in(rank.log);
    std::string line, last;
    while (std::getline(in, line)) {
      if (line.starts_with("round ")) last = line;
    }
    REQUIRE_FALSE(last.empty());
    if (first.empty()) first = last;
    CHECK(last == first);
  }
  std::istringstream in(first);
  std::string word, comma;
  Outcome outcome;
  in >> word >> outcome.round >> comma >> word >> outcome.loss;
  REQUIRE_MESSAGE(in, first);
  return outcome;
}

}  // namespace

TEST_CASE("a program in C trains on two servers and two nodes with two ranks each") {
  const TempDir dir;
  const auto cluster = start(two_by_two(dir));
  auto ranks = start_ranks(dir, *cluster, "300");
  const Outcome outcome = outcome_of(ranks, 0);
  CHECK(outcome.round == 300);
  CHECK(outcome.loss < 1e-6);
  CHECK(cluster->stop().empty());
}

TEST_CASE(
    "a program in C attaches again when a daemon is lost, and goes on after a stop, to the loss of a run without") {
  const TempDir whole, disturbed;
  Outcome stopped;
  {
    const auto cluster = start(two_by_two(disturbed));
    auto ranks = start_ranks(disturbed, *cluster, "100000000");
    wait_for(*cluster, "max_version", 200);
    for (Daemon* daemon : {&cluster->servers()[1], &cluster->workers()[0]}) {
      const std::uint64_t view = job_number(*cluster, "view");
      daemon->process.terminate(milliseconds(0));
      restart(*cluster, *daemon);
      wait_for(*cluster, "view", view + 1);
    }
    const std::uint64_t before = job_number(*cluster, "max_version");
    wait_for(*cluster, "max_version", before + 20);
    CHECK(cluster->stop().empty());
    stopped = outcome_of(ranks, 75);
    CHECK(stopped.round >= before + 20);
  }
  const std::string rounds = std::to_string(stopped.round + 50);
  const auto trained = [&](const TempDir& dir) {
    const auto cluster = start(two_by_two(dir));
    auto ranks = start_ranks(dir, *cluster, rounds);
    const Outcome outcome = outcome_of(ranks, 0);
    CHECK(cluster->stop().empty());
    return outcome;
  };
  const Outcome resumed = trained(disturbed), reference = trained(whole);
  CHECK(resumed.round == stopped.round + 50);
  CHECK(resumed.loss == reference.loss);
  CHECK(resumed.loss < 1e-6);
}

}  // namespace tributary::e2e::c_session_test

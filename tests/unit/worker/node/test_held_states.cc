// HeldStates: what the next trainer in a rank's place gets.
#include <doctest/doctest.h>

#include "worker/node/held_states.h"

namespace tributary::held_states_test {
namespace {

RankState state_of(std::uint64_t round, std::size_t bytes = 3) {
  return {Round(round), std::vector<std::byte>(bytes, static_cast<std::byte>(round))};
}

TEST_CASE("what a rank gave last for the round of a view is there, and nothing of rounds that are gone through again") {
  HeldStates held;
  for (std::uint64_t round = 1; round <= 5; ++round) held.hold("job", 1, state_of(round), 0);
  held.hold("job", 1, state_of(5, 7), 0);
  CHECK(held.of("job", 1, Round(1)).empty());  // too old
  CHECK(held.of("job", 1, Round(5)).size() == 7);
  CHECK(held.of("job", 0, Round(5)).empty());
  CHECK(held.of("other", 1, Round(5)).empty());

  held.begin("job", JobId(), Round(4), false, 0);
  CHECK(held.of("job", 1, Round(4)).size() == 3);
  CHECK(held.of("job", 1, Round(5)).empty());

  held.begin("job", JobId(), Round(4), true, 0);
  CHECK(held.of("job", 1, Round(4)).empty());
}

TEST_CASE("a rank that gave nothing can have what the node's first gave") {
  HeldStates held;
  held.hold("job", 2, state_of(9, 4), 0);
  held.hold("job", 1, state_of(8, 2), 0);
  CHECK(held.first("job", Round(9)).size() == 4);
  CHECK(held.first("job", Round(8)).size() == 2);
  CHECK(held.first("job", Round(7)).empty());
}

TEST_CASE("a job of the same name that has another id begins with nothing") {
  HeldStates held;
  held.begin("job", JobId(7), Round(0), true, 0);
  held.hold("job", 0, state_of(1), 0);
  JoinJob join;
  held.describe("job", join);
  CHECK(join.held_job == JobId(7));
  CHECK(join.held_rounds == std::vector{Round(1)});
  REQUIRE(join.held_states.size() == 1);
  CHECK(join.held_states[0] == state_of(1).state);
  held.begin("job", JobId(8), Round(1), false, 0);
  CHECK(held.of("job", 0, Round(1)).empty());
}

TEST_CASE("what is held has a bound: of a job in bytes, of jobs in number, and in time") {
  HeldStates held;
  std::uint32_t fit = 0;
  while (true) {
    held.hold("large", fit, state_of(1, kMaxRankState), 0);
    if (held.of("large", fit, Round(1)).empty()) break;
    ++fit;
  }
  CHECK(fit == HeldStates::kMaxJobBytes / kMaxRankState);
  held.begin("large", JobId(), Round(2), false, 0);  // gives its bytes back
  held.hold("large", 0, state_of(2, kMaxRankState), 0);
  CHECK_FALSE(held.of("large", 0, Round(2)).empty());

  for (std::size_t job = 0; job < HeldStates::kMaxJobs; ++job) held.hold(std::to_string(job), 0, state_of(1), 1 + job);
  CHECK(held.of("large", 0, Round(2)).empty());  // the one that was seen longest ago
  CHECK_FALSE(held.of("0", 0, Round(1)).empty());

  held.in_use("7", 5000);
  held.tick(4000 + HeldStates::kHoldMs);
  CHECK(held.of("0", 0, Round(1)).empty());
  CHECK_FALSE(held.of("7", 0, Round(1)).empty());
}

}  // namespace
}  // namespace tributary::held_states_test

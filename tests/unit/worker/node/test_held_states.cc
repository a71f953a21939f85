// HeldStates: the state that the next trainer in a rank's place gets.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "worker/node/held_states.h"

namespace tributary::held_states_test {
namespace {

KeptState state_of(std::uint64_t round, std::size_t bytes = 3) {
  return {{Round(round), std::vector<std::byte>(bytes, static_cast<std::byte>(round))}};
}

// Returns the number of bytes; 0 if nothing is held.
std::size_t size_of(const KeptState* state) {
  return state ? state->state.state.size() : 0;
}

KeptState large_of(std::uint64_t round, bool whole = true) {
  const std::vector<std::byte> values(8, static_cast<std::byte>(round));
  const std::span<const std::byte> parts[] = {values};
  return {{Round(round), StateHead{{8, 0, round}, whole}.before({})}, SealedBytes::of(parts, "a test").value()};
}

std::shared_ptr<MemoryBudget> budget_of(std::uint64_t bytes) {
  return std::make_shared<MemoryBudget>(bytes);
}

TEST_CASE("what a rank gave last for the round of a view is there, and nothing of rounds that are gone through again") {
  HeldStates held(budget_of(1u << 30));
  for (std::uint64_t round = 1; round <= 5; ++round) CHECK(held.hold("job", 1, state_of(round), 0));
  CHECK(held.hold("job", 1, state_of(5, 7), 0));
  CHECK(!held.of("job", 1, Round(1)));  // too old
  CHECK(size_of(held.of("job", 1, Round(5))) == 7);
  CHECK(!held.of("job", 0, Round(5)));
  CHECK(!held.of("other", 1, Round(5)));

  held.begin("job", JobId(), NodeRank(0), Round(4), false, 0);
  CHECK(size_of(held.of("job", 1, Round(4))) == 3);
  CHECK(!held.of("job", 1, Round(5)));

  held.begin("job", JobId(), NodeRank(0), Round(4), true, 0);
  CHECK(!held.of("job", 1, Round(4)));
}

TEST_CASE("what the ranks of another node kept is nothing for those that are here now") {
  HeldStates held(budget_of(1u << 30));
  held.begin("job", JobId(7), NodeRank(1), Round(0), true, 0);
  CHECK(held.hold("job", 0, large_of(3), 0));
  const auto described = [&](std::uint32_t node) {
    JoinJob join;
    join.node = NodeRank(node);
    held.describe("job", join);
    return join.held_rounds.size();
  };
  CHECK(described(1) == 1);
  CHECK(described(0) == 0);  // its machine has another rank in the job since its trainers were started again
  held.begin("job", JobId(7), NodeRank(0), Round(3), false, 0);
  CHECK(!held.of("job", 0, Round(3)));
}

TEST_CASE("large parts are held of two rounds, and of what was given for a snapshot though the rank is further") {
  HeldStates held(budget_of(1u << 30));
  const auto there = [&](std::uint64_t round) { return held.large(LargePart{8, 0, round}) != nullptr; };
  held.begin("job", JobId(7), NodeRank(0), Round(0), true, 0);
  for (std::uint64_t round = 1; round <= 5; ++round) {
    CHECK(held.hold("job", 0, large_of(round, round != 4), 0));
    if (round == 2) held.given("job", 0, Round(2));
    if (round == 3) held.given("job", 0, Round(9));  // that is not here
  }
  CHECK_FALSE(there(1));
  CHECK(there(2));
  CHECK_FALSE(there(3));
  CHECK((there(4) && there(5)));
  CHECK_FALSE(held.of("job", 0, Round(3)));  // without its large part it is of no use
  JoinJob join;
  held.describe("job", join);
  CHECK(join.held_rounds == std::vector{Round(5)});  // whole ones
  CHECK(join.held_ranks == std::vector{0u});
  held.begin("job", JobId(7), NodeRank(0), Round(4), false, 0);
  CHECK((there(2) && there(4) && !there(5)));
  held.begin("job", JobId(8), NodeRank(0), Round(0), true, 0);
  CHECK_FALSE((there(2) || there(4)));
}

TEST_CASE("a job of the same name that has another id begins with nothing") {
  HeldStates held(budget_of(1u << 30));
  held.begin("job", JobId(7), NodeRank(0), Round(0), true, 0);
  CHECK(held.hold("job", 0, state_of(1), 0));
  JoinJob join;
  held.describe("job", join);
  CHECK(join.held_job == JobId(7));
  CHECK(join.held_rounds == std::vector{Round(1)});
  CHECK(join.held_ranks == std::vector{0u});
  held.begin("job", JobId(8), NodeRank(0), Round(1), false, 0);
  CHECK(!held.of("job", 0, Round(1)));
}

TEST_CASE("what is held has a bound: of a job in bytes, of jobs in number, and in time") {
  HeldStates held(budget_of(1u << 30));
  std::uint32_t fit = 0;
  while (held.hold("large", fit, state_of(1, kMaxRankState), 0)) ++fit;
  CHECK(!held.of("large", fit, Round(1)));
  CHECK(fit == HeldStates::kMaxJobBytes / kMaxRankState);
  held.begin("large", JobId(), NodeRank(0), Round(2), false, 0);  // gives its bytes back
  CHECK(held.hold("large", 0, state_of(2, kMaxRankState), 0));
  CHECK(held.of("large", 0, Round(2)));

  for (std::size_t job = 0; job < HeldStates::kMaxJobs; ++job)
    CHECK(held.hold(std::to_string(job), 0, state_of(1), 1 + job));
  CHECK(!held.of("large", 0, Round(2)));  // the one that was seen longest ago
  CHECK(held.of("0", 0, Round(1)));

  held.in_use("7", 5000);
  held.tick(4000 + HeldStates::kHoldMs);
  CHECK(!held.of("0", 0, Round(1)));
  CHECK(held.of("7", 0, Round(1)));
}

TEST_CASE("what is held counts against the worker's memory, once, and what it has no room for is refused in words") {
  const auto budget = budget_of(100);
  const std::uint64_t one = StateHead::kBytes + 8;
  HeldStates held(budget);
  CHECK(held.hold("job", 0, large_of(1), 0));
  held.given("job", 0, Round(1));
  CHECK(budget->used() == one);
  CHECK(held.hold("job", 0, large_of(2), 0));
  CHECK(budget->used() == 2 * one);
  const auto refused = failure_of(held.hold("job", 3, large_of(2), 0));
  CHECK(refused.code == ErrorCode::kLimit);
  CHECK(
      refused.message ==
      "job 'job': what local rank 3 keeps of round 2 (40 bytes) is not held for whoever takes its place: 80 of 100 are "
      "taken; raise [limits] max_shared_memory in worker.toml, or keep less");
  CHECK_FALSE(held.of("job", 3, Round(2)));
  CHECK_FALSE(held.hold("job", 0, large_of(3), 0));  // the first one is still to be fetched
  CHECK(held.of("job", 0, Round(2)));
  held.begin("job", JobId(8), NodeRank(0), Round(0), true, 0);
  CHECK(budget->used() == 0);
}

}  // namespace
}  // namespace tributary::held_states_test

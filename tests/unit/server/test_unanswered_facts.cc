// UnansweredFacts: what is sent again, and for how long.
#include <doctest/doctest.h>

#include "server/unanswered_facts.h"
#include "tests/unit/required.h"

namespace tributary {
namespace {

RoundFacts facts_of(std::uint64_t round) {
  RoundFacts facts;
  facts.round = Round(round);
  return facts;
}

}  // namespace

TEST_CASE("facts are sent again every half second, until that round is decided") {
  constexpr std::uint64_t kRepeat = UnansweredFacts::kRepeatMs;
  UnansweredFacts facts;
  CHECK(facts.due(kRepeat).empty());
  facts.sent(LaneIndex(0), facts_of(3), 1000);
  facts.sent(LaneIndex(1), facts_of(4), 1100);
  CHECK(facts.due(1099 + kRepeat).empty());  // the last ones count
  CHECK(facts.due(1100 + kRepeat).size() == 2);
  CHECK(facts.due(1101 + kRepeat).empty());
  CHECK(facts.due(1100 + 2 * kRepeat).size() == 2);
  facts.decided(Round(3));
  const auto left = only_one(facts.due(1100 + 3 * kRepeat));
  CHECK(left.round == Round(4));
  facts.decided(Round(5));
  CHECK(facts.due(1100 + 4 * kRepeat).empty());
}

TEST_CASE("a lane's facts of a round take the place of its facts of the round before") {
  UnansweredFacts facts;
  facts.sent(LaneIndex(0), facts_of(3), 0);
  facts.sent(LaneIndex(0), facts_of(4), 0);
  const auto due = only_one(facts.due(UnansweredFacts::kRepeatMs));
  CHECK(due.round == Round(4));
}

}  // namespace tributary

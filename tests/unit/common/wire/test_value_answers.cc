// ValueAnswers: answers that are kept from view to view, and checks of a message with values.
#include <doctest/doctest.h>

#include "common/wire/codec.h"
#include "common/wire/messages.h"
#include "common/wire/value_answers.h"

namespace tributary::value_answers_test {
namespace {

SharedValues answer_of(std::uint64_t round, std::uint32_t index, std::size_t bytes = 3, std::uint32_t ranks = 2) {
  SharedValues answer{Round(round), index, true, {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    answer.values.push_back({rank, std::vector<std::byte>(bytes, static_cast<std::byte>(round))});
  }
  return answer;
}

bool arrives(const SharedValues& values) {
  const bool by_attach = decode_attach(encode_attach(values)).has_value();
  CHECK(decode_control(encode_control(RankValues{JobId(1), ViewId(2), values, {}, {}})).has_value() == by_attach);
  return by_attach;
}

}  // namespace

TEST_CASE("of the newest rounds that have answers all are kept, and one is given again as it was") {
  ValueAnswers answers;
  answers.begin(JobId(9), Round(0));
  CHECK(answers.all().empty());
  for (std::uint64_t round = 0; round < 60; round += 10) {
    answers.add(answer_of(round, 0));
    answers.add(answer_of(round, 7));
  }
  CHECK(answers.all().size() == 2 * (1 + ValueAnswers::kRounds));
  CHECK(answers.of({Round(0), 7}));  // a process that starts asks for it
  CHECK(answers.of({Round(10), 0}) == nullptr);
  REQUIRE(answers.of({Round(20), 7}));
  CHECK(*answers.of({Round(20), 7}) == answer_of(20, 7));
  CHECK(answers.of({Round(20), 1}) == nullptr);
  answers.add(answer_of(3, 0));  // older than all of them: nobody asks for it
  CHECK(answers.of({Round(3), 0}) == nullptr);
}

TEST_CASE("a view that begins after an earlier round makes later answers void, and another job all of them") {
  ValueAnswers answers;
  answers.begin(JobId(9), Round(0));
  for (std::uint64_t round = 10; round < 13; ++round) answers.add(answer_of(round, 0));
  SUBCASE("the same round, and a later one, keep all") {
    answers.begin(JobId(9), Round(12));
    answers.begin(JobId(9), Round(14));
    CHECK(answers.all().size() == 3);
  }
  SUBCASE("an earlier one") {
    answers.begin(JobId(9), Round(11));
    CHECK(answers.all().size() == 2);
    CHECK(answers.of({Round(11), 0}));
    CHECK(answers.of({Round(12), 0}) == nullptr);
  }
  SUBCASE("another job") {
    answers.begin(JobId(8), Round(12));
    CHECK(answers.all().empty());
  }
}

TEST_CASE("the answers of a round are bounded") {
  ValueAnswers answers;
  answers.begin(JobId(9), Round(0));
  const std::uint32_t fit = ValueAnswers::kMaxRoundBytes / (32 * (kMaxValueBytes + 16));
  for (std::uint32_t index = 0; index < 2 * fit; ++index) answers.add(answer_of(5, index, kMaxValueBytes, 32));
  CHECK(answers.all().size() == fit);
  CHECK(answers.of({Round(5), fit - 1}) == nullptr);
  CHECK(answers.of({Round(5), fit}));
  answers.add(answer_of(5, fit));  // in place of a larger one
  answers.add(answer_of(5, 2 * fit, kMaxValueBytes, 20));
  CHECK(answers.of({Round(5), fit}));
  CHECK(answers.all().size() == fit + 1);
}

TEST_CASE("values that nobody may give are not understood") {
  CHECK(arrives({Round(3), ~0u, false, {{7, std::vector<std::byte>(kMaxValueBytes)}}}));
  CHECK(arrives(answer_of(3, 0)));
  CHECK(arrives({Round(3), 0, false, {}}));
  CHECK_FALSE(arrives({Round(3), 0, false, {{7, std::vector<std::byte>(kMaxValueBytes + 1)}}}));
  CHECK_FALSE(arrives(answer_of(3, 0, kMaxValueBytes, 64)));  // with what each takes beside
  CHECK_FALSE(arrives({Round(3), 0, true, {}}));
  SharedValues gap = answer_of(3, 0);
  gap.values[1].rank = 2;
  CHECK_FALSE(arrives(gap));
}

}  // namespace tributary::value_answers_test

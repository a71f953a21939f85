// JobValues: how the values of all ranks come together, the answer that each node gets, and errors that end a job.
#include <doctest/doctest.h>

#include "server/coordinator/job/job_values.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::job_values_test {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

SharedValues given(std::uint64_t round, std::uint32_t index,
                   std::vector<std::pair<std::uint32_t, std::string>> values) {
  SharedValues said{Round(round), index, false, {}};
  for (const auto& [rank, text] : values) said.values.push_back({rank, bytes_of(text)});
  return said;
}

SharedValues answer(std::uint64_t round, std::uint32_t index,
                    std::vector<std::pair<std::uint32_t, std::string>> values) {
  SharedValues said = given(round, index, std::move(values));
  said.complete = true;
  return said;
}

// Three ranks, of which 1 and 2 are a node's.
struct Values {
  Values() { values.begin(JobId(9), ViewId(1), Round(0), 3); }
  JobValues::Reply on(const SharedValues& said) { return required(values.on(said, now)); }
  std::string refused(const SharedValues& said) {
    const auto reply = failure_of(values.on(said, now));
    return reply.message;
  }
  bool nothing(const SharedValues& said) {
    const JobValues::Reply reply = on(said);
    return !reply.to_author && !reply.to_all;
  }

  JobValues values;
  std::uint64_t now = 1000;
};

}  // namespace

TEST_CASE("when the values of all ranks are there all nodes get them, by rank") {
  Values values;
  CHECK(values.nothing(given(5, 0, {{1, "b"}, {2, ""}})));
  const JobValues::Reply reply = values.on(given(5, 0, {{0, "a"}}));
  CHECK_FALSE(reply.to_author);
  REQUIRE(reply.to_all);
  CHECK(reply.to_all->job == JobId(9));
  CHECK(reply.to_all->view == ViewId(1));
  CHECK(reply.to_all->message.empty());
  CHECK(reply.to_all->shared == answer(5, 0, {{0, "a"}, {1, "b"}, {2, ""}}));
}

TEST_CASE("values are given in parts, and again") {
  Values values;
  CHECK(values.nothing(given(5, 0, {{2, "c"}})));
  CHECK(values.nothing(given(5, 0, {{1, "b"}, {2, "c"}})));
  CHECK(values.nothing(given(5, 0, {})));
  CHECK(values.on(given(5, 0, {{0, "a"}})).to_all);
  const std::string why = [&] {
    CHECK(values.nothing(given(5, 1, {{2, "c"}})));
    return values.refused(given(5, 1, {{2, "cc"}}));
  }();
  CHECK(testing::contains(why, "rank 2 gave value 1 after round 5 a second time with other bytes (1, then 2)"));
}

TEST_CASE("who asks for what is answered already gets that, also in later views") {
  Values values;
  const SharedValues known = answer(5, 0, {{0, "a"}, {1, "b"}, {2, "c"}});
  CHECK(values.nothing(given(5, 0, {{1, "b"}, {2, "c"}})));
  CHECK(values.on(given(5, 0, {{0, "a"}})).to_all->shared == known);
  SUBCASE("in this one") {}
  SUBCASE("in the next") {
    values.values.begin(JobId(9), ViewId(2), Round(5), 3);
  }
  SUBCASE("with other nodes, of an elastic job") {
    values.values.begin(JobId(9), ViewId(2), Round(6), 5);
  }
  const JobValues::Reply reply = values.on(given(5, 0, {{1, "other"}}));
  CHECK_FALSE(reply.to_all);
  REQUIRE(reply.to_author);
  CHECK(reply.to_author->shared == known);
  // Its author has it; and another one does not count.
  CHECK(values.nothing(known));
  CHECK(values.on(answer(5, 0, {{0, "x"}})).to_author->shared == known);
}

TEST_CASE("a view makes void what is open, and the answers of later rounds") {
  Values values;
  CHECK(values.nothing(given(6, 0, {{1, "b"}, {2, "c"}})));
  CHECK(values.on(given(5, 0, {{0, "a"}, {1, "b"}, {2, "c"}})).to_all);
  SUBCASE("the round is gone through again") {
    values.values.begin(JobId(9), ViewId(2), Round(4), 3);
    CHECK(values.nothing(given(5, 0, {{1, "b"}, {2, "c"}})));
  }
  SUBCASE("another training") {
    values.values.begin(JobId(10), ViewId(2), Round(7), 3);
    CHECK(values.nothing(given(5, 0, {{1, "b"}, {2, "c"}})));
  }
  values.values.begin(JobId(9), ViewId(3), Round(6), 3);
  CHECK(values.values.waits().empty());
  CHECK(values.nothing(given(6, 0, {{0, "a"}})));
}

TEST_CASE("an answer that a node knows is one, and goes to all if anybody waits for it") {
  Values values;
  const SharedValues known = answer(5, 0, {{0, "a"}, {1, "b"}, {2, "c"}});
  SUBCASE("nobody does yet") {
    CHECK(values.nothing(known));
    CHECK(values.on(given(5, 0, {{0, "a"}})).to_author->shared == known);
  }
  SUBCASE("somebody does") {
    CHECK(values.nothing(given(5, 0, {{0, "a"}})));
    CHECK(values.on(known).to_all->shared == known);
    CHECK(values.values.waits().empty());
  }
}

TEST_CASE("only the node that has a rank speaks for it") {
  CHECK(JobValues::check(given(5, 0, {{1, "b"}, {2, "c"}}), 1, 2));
  CHECK(JobValues::check(answer(5, 0, {{0, "a"}}), 1, 2));
  for (const std::uint32_t rank : {0u, 3u, ~0u}) {
    const auto refused = failure_of(JobValues::check(given(5, 0, {{2, "c"}, {rank, "x"}}), 1, 2));
    CHECK(testing::contains(refused.message, "value 0 after round 5 of rank " + std::to_string(rank) +
                                                 ", which is not one of its 2 ranks from 1 on"));
  }
}

TEST_CASE("ranks that wait for different keys are a mistake, when nothing has come of it for long") {
  Values values;
  CHECK(values.nothing(given(12, 2, {{1, "b"}, {2, "c"}})));
  values.now += 60'000;
  CHECK_FALSE(values.values.mistake(values.now));  // one rank computes
  CHECK(values.nothing(given(12, 3, {{0, "a"}})));
  CHECK_FALSE(values.values.mistake(values.now + JobValues::kPatienceMs - 1));
  SUBCASE("the answer to the first was only lost") {
    CHECK(values.on(answer(12, 2, {{0, "a"}, {1, "b"}, {2, "c"}})).to_all);
    CHECK_FALSE(values.values.mistake(values.now + JobValues::kPatienceMs));
    return;
  }
  const auto why = required(values.values.mistake(values.now + JobValues::kPatienceMs));
  CHECK(why.code == ErrorCode::kInvalidArgument);
  CHECK(why.message ==
        "rank 1 is at value 2 after round 12, rank 0 at value 3 after round 12: all ranks make the same calls, in the "
        "same order");
  const RankValues told = values.values.give_up(why);
  CHECK(told.message == why.message);
  CHECK_FALSE(told.shared.complete);
  CHECK_FALSE(values.values.mistake(values.now + JobValues::kPatienceMs));
}

TEST_CASE("values that are too many are refused with what is too much") {
  Values values;
  SUBCASE("of all ranks") {
    values.values.begin(JobId(9), ViewId(1), Round(0), 100);
    SharedValues said{Round(5), 0, false, {}};
    for (std::uint32_t rank = 0; rank < 63; ++rank) {
      said.values.push_back({rank, std::vector<std::byte>(kMaxValueBytes)});
    }
    CHECK(values.nothing(said));
    said.values = {{63, std::vector<std::byte>(kMaxValueBytes)}};
    const std::string why = values.refused(said);
    CHECK(testing::contains(why, "value 0 after round 5 of 64 ranks takes 4195328 bytes, over the limit of 4194304"));
  }
  SUBCASE("keys that are open") {
    for (std::uint32_t index = 0; index < JobValues::kMaxOpen; ++index) {
      CHECK(values.nothing(given(5, index, {{0, "a"}})));
    }
    CHECK(values.nothing(given(5, 0, {{1, "b"}})));
    CHECK(testing::contains(values.refused(given(5, 99, {{1, "b"}})),
                            "rank 1 gives value 99 after round 5 while 8 others are open"));
  }
}

TEST_CASE("it is known for whom ranks wait, and for how long in vain") {
  Values values;
  CHECK(values.values.waits().empty());
  CHECK(values.nothing(given(5, 0, {{1, "b"}})));
  CHECK(values.values.waits() == "rank 1 waits for value 0 after round 5 of rank 0, rank 2");
  CHECK_FALSE(values.values.waits_for(0, 1, values.now + JobValues::kPatienceMs - 1));
  CHECK(values.values.waits_for(0, 1, values.now + JobValues::kPatienceMs) ==
        "rank 1 waits for value 0 after round 5 of rank 0: all ranks make the same calls");
  CHECK_FALSE(values.values.waits_for(1, 1, values.now + JobValues::kPatienceMs));
  CHECK(values.values.waits_for(1, 2, values.now + JobValues::kPatienceMs));
}

}  // namespace tributary::job_values_test

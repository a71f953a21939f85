// ControlOutbox: messages that wait for a coordinator that does not read, and messages that give way.
#include <doctest/doctest.h>

#include <string>

#include "common/daemon/control_outbox.h"
#include "tests/unit/expect.h"

namespace tributary::control_outbox_test {
namespace {

NodeRankState state_of(std::uint32_t rank, std::uint64_t round, std::size_t bytes = 100, std::uint64_t job = 9) {
  return {JobId(job), ViewId(1), NodeRank(0), rank, {Round(round), std::vector<std::byte>(bytes)}};
}

LeaveJob leave_of(const std::string& name) {
  LeaveJob leave;
  leave.name = name;
  return leave;
}

}  // namespace

TEST_CASE("messages leave in the order in which they came, each once") {
  ControlOutbox outbox;
  CHECK(outbox.next() == nullptr);
  CHECK(outbox.push(leave_of("first")).empty());
  CHECK(outbox.push(leave_of("second")).empty());
  const std::uint64_t first = outbox.next()->number;
  CHECK(std::get<LeaveJob>(outbox.next()->message).name == "first");
  outbox.sent(first);
  outbox.sent(first);
  REQUIRE(outbox.next());
  CHECK(std::get<LeaveJob>(outbox.next()->message).name == "second");
  outbox.sent(outbox.next()->number);
  CHECK(outbox.size() == 0);
  CHECK(outbox.bytes() == 0);
}

TEST_CASE("of what a rank keeps the newest wait, and nothing is said of the others") {
  ControlOutbox outbox;
  for (std::uint64_t round = 1; round <= 50; ++round) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) CHECK(outbox.push(state_of(rank, round)).empty());
  }
  CHECK(outbox.push(state_of(0, 7, 100, 10)).empty());  // another job's
  CHECK(outbox.size() == 2 * ControlOutbox::kStatesARank + 1);
  CHECK(std::get<NodeRankState>(outbox.next()->message).kept.round == Round(51 - ControlOutbox::kStatesARank));
}

TEST_CASE("values of ranks that are said again take the place of what was said before") {
  ControlOutbox outbox;
  const auto values_of = [](std::uint32_t index, std::size_t ranks) {
    RankValues said{JobId(9), ViewId(1), {Round(3), index, false, {}}, {}, ""};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) said.shared.values.push_back({rank, {std::byte(1)}});
    return said;
  };
  CHECK(outbox.push(values_of(0, 1)).empty());
  CHECK(outbox.push(values_of(1, 1)).empty());
  for (int i = 0; i < 50; ++i) CHECK(outbox.push(values_of(0, 2)).empty());
  CHECK(outbox.size() == 2);
  outbox.sent(outbox.next()->number);
  CHECK(std::get<RankValues>(outbox.next()->message).shared.values.size() == 2);
  outbox.sent(outbox.next()->number);
  CHECK(outbox.bytes() == 0);
}

TEST_CASE("what ranks keep gives way first, in words, and never a message about another job's life") {
  ControlOutbox outbox;
  CHECK(outbox.push(leave_of("other")).empty());
  const std::uint64_t oldest = outbox.next()->number;
  std::string lost;
  for (std::uint32_t rank = 0; rank < 256 && lost.empty(); ++rank) {
    for (std::uint64_t round = 1; round <= 2 && lost.empty(); ++round) {
      lost = outbox.push(state_of(rank, round, kMaxRankState));
    }
  }
  CHECK(testing::contains(lost, "rank 0"));
  CHECK(testing::contains(lost, "job with id 9"));
  CHECK(outbox.bytes() <= ControlOutbox::kMaxBytes);
  CHECK(outbox.next()->number == oldest);
  for (std::size_t i = 0; i < ControlOutbox::kMaxMessages; ++i) outbox.push(leave_of("many"));
  CHECK(outbox.size() == ControlOutbox::kMaxMessages);
  CHECK(std::get<LeaveJob>(outbox.next()->message).name == "many");  // no states are left to give way
}

}  // namespace tributary::control_outbox_test

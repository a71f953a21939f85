// With which of several servers a daemon speaks (docs/failover.md).
#include <doctest/doctest.h>

#include "common/daemon/coordinator_choice.h"

namespace tributary::coordinator_choice_test {
namespace {

constexpr std::uint64_t kFresh = 10'000;

SeatReport report(std::uint16_t place, std::uint64_t term, std::uint16_t holder, std::uint64_t silent_ms = 0) {
  return {ShardIndex(place), Term(term), ShardIndex(holder), silent_ms, {}};
}

}  // namespace

TEST_CASE("a daemon with one address never leaves it") {
  CoordinatorChoice choice(1, std::nullopt);
  choice.begin(0);
  CHECK_FALSE(choice.tick(1'000'000));
  CHECK_FALSE(choice.leave(1'000'000));
  CHECK(choice.at() == 0);
}

TEST_CASE("addresses that do not answer are tried in turns") {
  CoordinatorChoice choice(3, std::nullopt);
  std::uint64_t now_ms = 100;
  choice.begin(now_ms);
  for (const std::size_t next : {1, 2, 0}) {
    CHECK_FALSE(choice.tick(now_ms + CoordinatorChoice::kTryMs - 1));
    now_ms += CoordinatorChoice::kTryMs;
    CHECK(choice.tick(now_ms));
    CHECK(choice.at() == next);
  }
}

TEST_CASE("a daemon goes where the coordinator is said to be, if that was heard lately") {
  CoordinatorChoice choice(3, std::nullopt);
  CHECK_FALSE(choice.elsewhere(report(0, 17, 0xffff), kFresh, 5));
  CHECK_FALSE(choice.elsewhere(report(0, 17, 0), kFresh, 5));  // itself
  CHECK_FALSE(choice.elsewhere(report(0, 17, 3), kFresh, 5));  // there is no such address
  CHECK_FALSE(choice.elsewhere(report(0, 17, 2, kFresh), kFresh, 5));
  CHECK(choice.at() == 0);
  CHECK(choice.elsewhere(report(0, 17, 2), kFresh, 5));
  CHECK(choice.at() == 2);
}

TEST_CASE("a server obeys no lower term than one that it has obeyed; a worker has no promise to keep") {
  CoordinatorChoice server(2, Term(16)), worker(2, std::nullopt);
  CHECK_FALSE(server.obeys(Term(15)));
  CHECK(server.obeys(Term(33)));
  CHECK(server.promised() == Term(33));
  CHECK_FALSE(server.obeys(Term(32)));
  CHECK_FALSE(server.elsewhere(report(0, 32, 1), kFresh, 5));
  CHECK(worker.obeys(Term(33)));
  CHECK(worker.obeys(Term(16)));
}

}  // namespace tributary::coordinator_choice_test

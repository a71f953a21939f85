// With which of several servers a daemon speaks (docs/failover.md).
#include <doctest/doctest.h>

#include "common/daemon/coordinator_choice.h"

namespace tributary::coordinator_choice_test {
namespace {

constexpr std::uint64_t kTimeout = 3000, kTry = CoordinatorChoice::kTryMs;

SeatReport report(std::uint16_t place, std::uint64_t term, std::uint16_t holder, std::uint64_t silent_ms = 0) {
  return {ShardIndex(place), Term(term), ShardIndex(holder), silent_ms, {}};
}

}  // namespace

TEST_CASE("a daemon with one address never leaves it") {
  CoordinatorChoice choice(1, kTimeout, std::nullopt);
  choice.begin(0);
  CHECK_FALSE(choice.tick(1'000'000));
  CHECK_FALSE(choice.leave(1'000'000));
  CHECK(choice.at() == 0);
}

TEST_CASE("addresses that do not answer are tried in turns") {
  CoordinatorChoice choice(3, kTimeout, std::nullopt);
  std::uint64_t now_ms = 100;
  choice.begin(now_ms);
  for (const std::size_t next : {1, 2, 0}) {
    CHECK_FALSE(choice.tick(now_ms + kTry - 1));
    now_ms += kTry;
    CHECK(choice.tick(now_ms));
    CHECK(choice.at() == next);
  }
}

TEST_CASE("in a slow network each address has more time") {
  CoordinatorChoice choice(2, 60'000, std::nullopt);
  choice.begin(0);
  CHECK_FALSE(choice.tick(29'999));
  CHECK(choice.tick(30'000));
}

TEST_CASE("a daemon goes where the coordinator is said to be, if that was heard lately") {
  CoordinatorChoice choice(3, kTimeout, std::nullopt);
  CHECK_FALSE(choice.elsewhere(report(0, 17, 0xffff), 5));
  CHECK_FALSE(choice.elsewhere(report(0, 17, 0), 5));  // itself
  CHECK_FALSE(choice.elsewhere(report(0, 17, 3), 5));  // there is no such address
  CHECK_FALSE(choice.elsewhere(report(0, 17, 2, kTimeout), 5));
  CHECK(choice.at() == 0);
  CHECK(choice.elsewhere(report(0, 17, 2), 5));
  CHECK(choice.at() == 2);
}

TEST_CASE("a server obeys no lower term than one that it has obeyed; a worker has no promise to keep") {
  CoordinatorChoice server(2, kTimeout, Term(16)), worker(2, kTimeout, std::nullopt);
  CHECK_FALSE(server.obeys(Term(15)));
  CHECK(server.obeys(Term(33)));
  CHECK(server.promised() == Term(33));
  CHECK_FALSE(server.obeys(Term(32)));
  CHECK_FALSE(server.elsewhere(report(0, 32, 1), 5));
  CHECK(worker.obeys(Term(33)));
  CHECK(worker.obeys(Term(16)));
}

}  // namespace tributary::coordinator_choice_test

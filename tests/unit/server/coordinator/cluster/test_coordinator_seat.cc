// Which server has the coordinator (docs/failover.md).
#include <doctest/doctest.h>

#include "server/coordinator/cluster/coordinator_seat.h"
#include "tests/unit/required.h"

namespace tributary::coordinator_seat_test {
namespace {

constexpr std::uint64_t kTimeout = 1000;

CoordinatorSeat seat(std::uint16_t place, std::uint16_t places = 2, std::uint64_t known = 0) {
  return {{ShardIndex(place), places, kTimeout}, Term(known), 0};
}

// It stands, and its disk takes the term.
Term take(CoordinatorSeat& seat, std::uint64_t now_ms) {
  const auto term = required(seat.stand(now_ms));
  REQUIRE(seat.took(term, true));
  return term;
}

// Each hears of the other.
void exchange(CoordinatorSeat& a, CoordinatorSeat& b, std::uint64_t now_ms) {
  b.on(a.report(now_ms), now_ms);
  a.on(b.report(now_ms), now_ms);
}

}  // namespace

TEST_CASE("the first in the list takes the coordinator as soon as the others have said that they know none") {
  CoordinatorSeat first = seat(0), second = seat(1);
  CHECK_FALSE(first.stand(0));
  exchange(first, second, 10);
  CHECK_FALSE(second.stand(10));  // the turn of the first one
  const Term term = take(first, 10);
  CHECK(first.holds());
  exchange(first, second, 20);
  CHECK(second.term() == term);
  CHECK(second.holder_in_words() == "server 0");
  CHECK(second.report(30).holder == ShardIndex(0));
  CHECK(second.report(30).silent_ms == 10);
}

TEST_CASE("a holder that hears of a term between the last it knew of and its own stands again, as one that has moved") {
  CoordinatorSeat first = seat(0, 2, 16);
  const auto term = first.stand(kTimeout);
  REQUIRE(term == Term(32));
  CHECK(first.last_heard(kTimeout) == std::map<std::uint16_t, std::uint64_t>{{1, 0}});  // since it listens
  REQUIRE(first.took(*term, false));
  SUBCASE("a term of before is no news") {
    first.learn(Term(16));
    CHECK(first.holds());
    return;
  }
  SUBCASE("its registry may be of any term") {
    CoordinatorSeat moved = seat(0, 2, 16);
    REQUIRE(moved.stand(kTimeout));
    REQUIRE(moved.took(Term(32), true));
    moved.learn(Term(17));
    CHECK(moved.holds());
    return;
  }
  first.learn(Term(17));  // server 1 had the coordinator, and this server did not know
  CHECK_FALSE(first.holds());
  CHECK(first.unaware());
  CHECK(first.term() == Term(32));
  CHECK(take(first, kTimeout + 1) == Term(48));
  CHECK_FALSE(first.unaware());
  first.learn(Term(17));
  CHECK(first.holds());
}

TEST_CASE("one that starts alone waits, as another may have the coordinator and not be heard yet") {
  CoordinatorSeat first = seat(0);
  CHECK_FALSE(first.stand(kTimeout - 1));
  CHECK(first.stand(kTimeout));
}

TEST_CASE("the next takes the coordinator when its holder was silent for the timeout, with a higher term") {
  CoordinatorSeat first = seat(0), second = seat(1);
  exchange(first, second, 0);
  const Term before = take(first, 0);
  exchange(first, second, 500);
  CHECK_FALSE(second.stand(500 + kTimeout - 1));
  CHECK(second.last_heard(500 + kTimeout) == std::map<std::uint16_t, std::uint64_t>{{0, 500}});
  const Term after = take(second, 500 + kTimeout);
  CHECK(after > before);
  // The first one was only cut off.
  CHECK(first.holds());
  exchange(first, second, 2000);
  CHECK_FALSE(first.holds());
  CHECK(first.term() == after);
  CHECK(first.holder_in_words() == "server 1");
  CHECK_FALSE(first.stand(2000 + kTimeout - 1));  // it takes it back only when that one is silent
  CHECK(first.stand(2000 + kTimeout));
}

TEST_CASE("what a third one has heard of the holder counts") {
  CoordinatorSeat first = seat(0, 3), second = seat(1, 3), third = seat(2, 3);
  for (CoordinatorSeat* other : {&second, &third}) exchange(first, *other, 0);
  take(first, 0);
  for (std::uint64_t now = 100; now <= 5000; now += 100) {
    exchange(first, third, now);  // the first and the second do not hear each other
    exchange(second, third, now);
    CHECK_FALSE(second.stand(now));
  }
  CHECK(second.last_heard(6000) == std::map<std::uint16_t, std::uint64_t>{{0, 5000}, {2, 5000}});
}

TEST_CASE("one that is there and does not take its turn keeps nobody for ever") {
  CoordinatorSeat first = seat(0), second = seat(1);
  std::uint64_t now = 0;
  for (; !second.stand(now); now += 100) {
    exchange(first, second, now);
    REQUIRE(now < 10 * kTimeout);
  }
  CHECK(now == CoordinatorSeat::kTurns * kTimeout);
}

TEST_CASE("terms of different servers differ, and grow") {
  CoordinatorSeat first = seat(0, 2, 40), second = seat(1, 2, 40);
  const auto a = first.stand(kTimeout), b = second.stand(kTimeout);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(*a == Term(48));
  CHECK(*b == Term(49));
  CHECK(*seat(1, 2, 32).stand(kTimeout) == Term(33));
  CHECK(*seat(1, 2, 33).stand(kTimeout) == Term(49));
}

TEST_CASE("a term that is over before it is on the disk is not taken") {
  CoordinatorSeat second = seat(1);
  const auto term = required(second.stand(kTimeout));
  second.learn(Term(100));
  CHECK_FALSE(second.took(term, true));
  CHECK_FALSE(second.holds());
  CHECK(*second.stand(kTimeout) > Term(100));
}

TEST_CASE("a server that has obeyed a later one ends a coordinator, which takes a term beyond that") {
  CoordinatorSeat first = seat(0);
  take(first, kTimeout);
  first.learn(Term(177));
  CHECK_FALSE(first.holds());
  CHECK(take(first, kTimeout) > Term(177));
}

TEST_CASE("a registry is a server's own if nobody else can have had the coordinator since it was written") {
  const auto moved = [](std::uint64_t promised, std::uint64_t owned, std::uint64_t known, std::uint16_t place) {
    return CoordinatorSeat::moved({Term(promised), Term(owned)}, Term(known), ShardIndex(place));
  };
  CHECK_FALSE(moved(0, 0, 0, 0));  // the only one until now
  CHECK(moved(0, 0, 0, 1));        // it has copies at most
  CHECK_FALSE(moved(16, 16, 16, 0));
  CHECK(moved(33, 16, 33, 0));  // it has followed another one
  CHECK(moved(16, 16, 33, 0));  // it was away meanwhile
  CHECK(moved(33, 0, 33, 1));   // its records were not adopted
}

TEST_CASE("a disk that does not take the term is tried again, after a while") {
  CoordinatorSeat first = seat(0);
  REQUIRE(first.stand(kTimeout));
  CHECK_FALSE(first.stand(kTimeout));  // under way
  first.failed(kTimeout);
  CHECK_FALSE(first.stand(2 * kTimeout - 1));
  CHECK(first.stand(3 * kTimeout));
}

TEST_CASE("a report says nothing of itself, and nonsense is not believed") {
  CoordinatorSeat first = seat(0);
  first.on({ShardIndex(0), Term(99), ShardIndex(0), 0, {}}, 10);
  CHECK(first.term() == Term());
  first.on({ShardIndex(5), Term(99), ShardIndex(5), 0, {}}, 10);  // not in the list
  CHECK(first.term() == Term());
  first.on({ShardIndex(1), Term(~0ull), ShardIndex(1), 0, {}}, 10);
  first.learn(Term(~0ull - 16));
  CHECK(first.term() == Term());
  first.on({ShardIndex(1), Term(17), ShardIndex(9), 0, {}}, 10);
  CHECK(first.term() == Term(17));
  CHECK(first.report(10).holder == kNoShard);
  // After a restart the others remember this server's process of before.
  first.on({ShardIndex(1), Term(32), ShardIndex(0), 5, {}}, 10);
  CHECK(*first.stand(10) == Term(48));
}

TEST_CASE("a term that was written and not taken is known all the same, so that the next one is beyond it") {
  CoordinatorSeat third = seat(2, 3);
  const auto term = third.stand(kTimeout);
  REQUIRE(term == Term(2));
  third.learn(Term(1));
  CHECK_FALSE(third.took(*term, true));
  CHECK(third.term() == Term(2));
  CHECK(*third.stand(kTimeout) == Term(18));
}

TEST_CASE("a holder that cannot work leaves the coordinator to another one") {
  CoordinatorSeat first = seat(0), second = seat(1);
  exchange(first, second, 0);
  take(first, 0);
  exchange(first, second, 0);
  first.give_up(100);
  CHECK_FALSE(first.holds());
  std::uint64_t now = 100;
  for (; !second.stand(now); now += 100) {
    exchange(first, second, now);
    CHECK_FALSE(first.stand(now));
    REQUIRE(now < 10 * kTimeout);
  }
}

}  // namespace tributary::coordinator_seat_test

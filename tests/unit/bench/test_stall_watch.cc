// What the measurement of pauses takes out.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "bench/stall_watch.h"

namespace tributary::bench::stall_watch_test {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point at(int ms) {
  return Clock::time_point(std::chrono::milliseconds(1'000'000 + ms));
}

}  // namespace

TEST_CASE("a stall is what all cores have missed") {
  const std::vector<Stall> one = {{at(0), at(10)}, {at(20), at(60)}, {at(90), at(95)}};
  const std::vector<Stall> other = {{at(5), at(25)}, {at(30), at(40)}, {at(50), at(90)}};
  const std::vector<Stall> both = in_both(one, other);
  REQUIRE(both.size() == 4);
  CHECK((both[0].begin == at(5) && both[0].end == at(10)));
  CHECK((both[1].begin == at(20) && both[1].end == at(25)));
  CHECK((both[2].begin == at(30) && both[2].end == at(40)));
  CHECK((both[3].begin == at(50) && both[3].end == at(60)));
  CHECK(in_both(one, {}).empty());
}

TEST_CASE("stalls are taken out of a time as far as they lie in it") {
  const std::vector<Stall> stalls = {{at(0), at(10)}, {at(20), at(60)}, {at(90), at(95)}};
  CHECK(milliseconds_without(stalls, at(10), at(20)) == doctest::Approx(10.0));
  CHECK(milliseconds_without(stalls, at(5), at(30)) == doctest::Approx(10.0));
  CHECK(milliseconds_without(stalls, at(25), at(50)) == doctest::Approx(0.0));
  CHECK(milliseconds_without(stalls, at(-10), at(100)) == doctest::Approx(55.0));
  CHECK(milliseconds_without({}, at(0), at(7)) == doctest::Approx(7.0));
}

TEST_CASE("a watch ends, and what it has seen lies in its time, in order") {
  const Clock::time_point begin = Clock::now();
  StallWatch watch;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const std::vector<Stall> stalls = watch.finish();
  const Clock::time_point end = Clock::now();
  if (!watch.watches()) CHECK(stalls.empty());
  Clock::time_point last = begin;
  for (const Stall& stall : stalls) {
    CHECK(stall.begin >= last);
    CHECK(stall.end - stall.begin >= StallWatch::kShortest);
    last = stall.end;
  }
  CHECK(last <= end);
}

}  // namespace tributary::bench::stall_watch_test

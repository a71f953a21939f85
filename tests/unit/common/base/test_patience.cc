#include <doctest/doctest.h>

#include "common/base/patience.h"
#include "common/base/waking_clock.h"

namespace tributary::patience_test {

TEST_CASE("patience is over when nothing has moved for its limit, however long the whole takes") {
  Patience patience(1000, 5000);
  std::uint64_t now = 5000;
  for (std::uint64_t step = 1; step <= 100; ++step) CHECK_FALSE(patience.over(step, now += 999));
  CHECK_FALSE(patience.over(100, now + 1000));
  CHECK(patience.over(100, now + 1001));
  CHECK_FALSE(patience.over(101, now + 1001));
}

TEST_CASE("a waking clock stands still while its observer could not look") {
  WakingClock clock(250);
  CHECK(clock.at(70'000) == 70'000);
  CHECK(clock.at(70'100) == 70'100);
  CHECK(clock.at(70'100) == 70'100);
  // Stopped for a minute: whoever was heard before was silent for no longer than an observer may be late.
  CHECK(clock.at(130'100) == 70'350);
  CHECK(clock.at(130'200) == 70'450);
}

}  // namespace tributary::patience_test

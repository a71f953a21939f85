// Whether, and after which pause, a rank attaches again: the rule, and its C function.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "session/attach_retries.h"
#include "session/c_attach.h"

namespace tributary::attach_retries_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = AttachRetries::Clock;

MembershipConfig elastic(std::uint32_t rejoin_ms) {
  MembershipConfig membership{.on_worker_loss = OnLoss::kContinue, .rejoin_ms = rejoin_ms};
  return membership;
}

}  // namespace

TEST_CASE("pauses double up to five seconds, and begin anew after a round") {
  AttachRetries retries;
  const Clock::time_point now;
  for (const int pause : {25, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    CHECK(retries.next(false, now) == milliseconds(pause));
  }
  CHECK(retries.next(true, now) == milliseconds(25));
  CHECK(retries.next(false, now) == milliseconds(50));
}

TEST_CASE("a rank whose next view waits for it comes within half of that time, and not if it found no view") {
  AttachRetries retries;
  const Clock::time_point now;
  for (int i = 0; i < 10; ++i) {
    retries.ended(true, elastic(400));
    CHECK(retries.next(false, now) <= milliseconds(200));
  }
  CHECK(retries.next(false, now) == milliseconds(5000));
  retries.ended(false, elastic(400));
  CHECK(retries.next(false, now) == milliseconds(5000));
  MembershipConfig waits = elastic(400);
  waits.on_worker_loss = OnLoss::kWait;
  retries.ended(true, waits);
  CHECK(retries.next(false, now) == milliseconds(5000));
}

TEST_CASE("a rank gives up after a minute and twenty tries without a round") {
  AttachRetries retries;
  const Clock::time_point begin;
  SUBCASE("not within a minute") {
    for (int i = 0; i < 100; ++i) CHECK(retries.next(false, begin + seconds(59)));
  }
  SUBCASE("not after fewer tries, and then with their number") {
    CHECK(retries.next(false, begin));
    for (int i = 0; i < 19; ++i) CHECK(retries.next(false, begin + seconds(100)));
    CHECK_FALSE(retries.next(false, begin + seconds(100)));
    CHECK(retries.gave_up("nobody listens") ==
          "gave up after attaching 20 times without completing a round; the last reason: nobody listens");
    CHECK(retries.next(true, begin + seconds(200)));
    CHECK(retries.next(false, begin + seconds(300)));
  }
}

TEST_CASE("C: tributary_retry() tells errors that may pass from those that do not") {
  tributary_recovery_handle* recovery = tributary_recovery_handle_create();
  REQUIRE(recovery);
  std::uint32_t pause = 0;
  for (const tributary_status why : {TRIBUTARY_UNAVAILABLE, TRIBUTARY_TIMEOUT, TRIBUTARY_STALE_VIEW}) {
    CHECK(tributary_retry(recovery, why, nullptr, 0, &pause) == TRIBUTARY_OK);
  }
  CHECK(pause == 100);
  for (const tributary_status why : {TRIBUTARY_STOPPED, TRIBUTARY_CONFIG_MISMATCH, TRIBUTARY_STORE, 99}) {
    CHECK(tributary_retry(recovery, why, "a sentence", 0, &pause) == why);
    CHECK(std::string(tributary_last_error()) == "a sentence");
  }
  CHECK(tributary_retry(recovery, 65536 + TRIBUTARY_UNAVAILABLE, nullptr, 0, &pause) == TRIBUTARY_INVALID_ARGUMENT);
  CHECK(tributary_retry(recovery, TRIBUTARY_OK, nullptr, 0, &pause) == TRIBUTARY_INVALID_ARGUMENT);
  CHECK(tributary_retry(nullptr, TRIBUTARY_UNAVAILABLE, nullptr, 0, &pause) == TRIBUTARY_INVALID_ARGUMENT);
  CHECK(tributary_retry(recovery, TRIBUTARY_UNAVAILABLE, nullptr, 0, nullptr) == TRIBUTARY_INVALID_ARGUMENT);
  CHECK(tributary_retry(recovery, TRIBUTARY_TIMEOUT, nullptr, 1, &pause) == TRIBUTARY_OK);
  CHECK(pause == 25);
  // As if a minute had passed.
  AttachRetries& retries = recovery->kept->retries;
  retries = AttachRetries();
  for (int i = 0; i < 20; ++i) CHECK(retries.next(false, Clock::now() - seconds(61)));
  CHECK(tributary_retry(recovery, TRIBUTARY_UNAVAILABLE, "the worker is gone", 0, &pause) == TRIBUTARY_UNAVAILABLE);
  CHECK(std::string(tributary_last_error()) ==
        "gave up after attaching 20 times without completing a round; the last reason: the worker is gone");
  tributary_recovery_handle_destroy(recovery);
}

}  // namespace tributary::attach_retries_test

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
  MembershipConfig membership;
  membership.on_worker_loss = OnWorkerLoss::kContinue;
  membership.rejoin_ms = rejoin_ms;
  return membership;
}

}  // namespace

TEST_CASE("pauses double up to five seconds, and begin anew after a round") {
  AttachRetries retries;
  const Clock::time_point now;
  for (const int pause : {25, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    CHECK(retries.next(Round(0), now) == milliseconds(pause));
  }
  retries.ended(Round(0), true, {});
  CHECK(retries.next(Round(3), now) == milliseconds(25));
  CHECK(retries.next(Round(3), now) == milliseconds(50));
  // A session that went back makes its way again; one that never started did not.
  retries.ended(Round(1), true, {});
  CHECK(retries.next(Round(2), now) == milliseconds(25));
  retries.ended(std::nullopt, true, {});
  CHECK(retries.next(Round(2), now) == milliseconds(50));
}

TEST_CASE("a rank whose next view waits for it comes within half of that time, and not if it found no view") {
  AttachRetries retries;
  const Clock::time_point now;
  for (int i = 0; i < 10; ++i) {
    retries.ended(std::nullopt, true, elastic(400));
    CHECK(retries.next(Round(0), now) <= milliseconds(200));
  }
  CHECK(retries.next(Round(0), now) == milliseconds(5000));
  retries.ended(std::nullopt, false, elastic(400));
  CHECK(retries.next(Round(0), now) == milliseconds(5000));
}

TEST_CASE("a rank gives up after a minute and five tries without a new round") {
  AttachRetries retries;
  const Clock::time_point begin;
  SUBCASE("neither alone") {
    for (int i = 0; i < 100; ++i) CHECK(retries.next(Round(7), begin + seconds(59)));
  }
  SUBCASE("both") {
    CHECK(retries.next(Round(7), begin));
    for (int i = 0; i < 4; ++i) CHECK(retries.next(Round(7), begin + seconds(100)));
    CHECK_FALSE(retries.next(Round(7), begin + seconds(100)));
    CHECK(retries.gave_up("nobody listens") ==
          "gave up after attaching 5 times again without completing a round; the last reason: nobody listens");
  }
  SUBCASE("rounds that were there before are not new") {
    CHECK(retries.next(Round(7), begin));
    for (std::uint64_t i = 1; i < 5; ++i) {
      retries.ended(Round(0), true, {});
      CHECK(retries.next(Round(i), begin + seconds(100)));
    }
    CHECK_FALSE(retries.next(Round(7), begin + seconds(100)));
    CHECK(retries.next(Round(8), begin + seconds(100)));
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
    CHECK(tributary_retry(recovery, why, nullptr, 0, &pause) == why);
  }
  CHECK(tributary_retry(recovery, TRIBUTARY_OK, nullptr, 0, &pause) == TRIBUTARY_INVALID_ARGUMENT);
  CHECK(tributary_retry(nullptr, TRIBUTARY_UNAVAILABLE, nullptr, 0, &pause) == TRIBUTARY_INVALID_ARGUMENT);
  CHECK(tributary_retry(recovery, TRIBUTARY_UNAVAILABLE, nullptr, 0, nullptr) == TRIBUTARY_INVALID_ARGUMENT);
  // As if a minute had passed.
  AttachRetries& retries = recovery->kept->retries;
  for (int i = 0; i < 3; ++i) CHECK(retries.next(Round(0), Clock::now() - seconds(61)));
  retries = AttachRetries();
  for (int i = 0; i < 5; ++i) CHECK(retries.next(Round(0), Clock::now() - seconds(61)));
  CHECK(tributary_retry(recovery, TRIBUTARY_UNAVAILABLE, "the worker is gone", 0, &pause) == TRIBUTARY_UNAVAILABLE);
  CHECK(std::string(tributary_last_error()) ==
        "gave up after attaching 5 times again without completing a round; the last reason: the worker is gone");
  tributary_recovery_handle_destroy(recovery);
}

}  // namespace tributary::attach_retries_test

#include <doctest/doctest.h>

#include "tools/cli/run/restart_rules.h"

namespace tributary::cli::restart_rules_test {
namespace {

bool has(const std::optional<std::string>& text, const std::string& part) {
  return text && text->find(part) != std::string::npos;
}

const ExitStatus kKilled{.signal = SIGKILL}, kFailed{.code = 1}, kCrashed{.signal = SIGSEGV};

TEST_CASE("who is killed is started again, so often within ten rounds") {
  RestartRules rules(3);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(rules.refusal("trainer", kKilled, 0));
  CHECK_FALSE(rules.refusal("another", {.code = 128 + SIGTERM}, 0));  // as a shell says it
  CHECK(has(rules.refusal("trainer", kKilled, 9), "3 times within 10 rounds"));
  RestartRules others(1);
  for (std::uint64_t round = 0; round < 100; round += 10) CHECK_FALSE(others.refusal("trainer", kKilled, round));
  CHECK(RestartRules(0).refusal("trainer", kKilled, 50));
}

TEST_CASE("who fails before any round, or again and again in one, is not") {
  RestartRules rules(100);
  for (const ExitStatus& status : {kFailed, kCrashed, ExitStatus{.code = 128 + SIGABRT}}) {
    CHECK(has(rules.refusal("trainer", status, 0), "no round was complete since this run began"));
  }
  for (std::uint64_t round = 1; round < 50; ++round) CHECK_FALSE(rules.refusal("trainer", kFailed, round));
  CHECK_FALSE(rules.refusal("trainer", kFailed, 49));
  CHECK_FALSE(rules.refusal("trainer", kFailed, 49));
  CHECK_FALSE(rules.refusal("another", kFailed, 49));
  CHECK(has(rules.refusal("trainer", kFailed, 49), "times in one round"));
}

TEST_CASE("an error of who ran when another was killed is put down to that, until a round is complete") {
  RestartRules rules(100);
  for (int i = 0; i < 10; ++i) {  // ranks that exchange among themselves, before the first round
    CHECK_FALSE(rules.refusal("rank 0", kKilled, 0));
    CHECK_FALSE(rules.refusal("rank 1", kFailed, 0));
    CHECK_FALSE(rules.refusal("rank 2", kFailed, 0));  // it may have failed because of rank 1
  }
  CHECK_FALSE(rules.refusal("rank 1", kFailed, 0));  // because of rank 2
  CHECK(has(rules.refusal("rank 1", kFailed, 0), "no round was complete since this run began"));
  CHECK_FALSE(rules.refusal("rank 0", kKilled, 7));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(rules.refusal("rank 3", kFailed, 8));  // a round later: its own
  CHECK(has(rules.refusal("rank 3", kFailed, 8), "times in one round"));
}

TEST_CASE("errors that ranks bring upon each other end with the restarts of one") {
  RestartRules rules(20);
  CHECK_FALSE(rules.refusal("rank 0", kKilled, 0));
  bool refused = false;
  for (int i = 0; i < 21 && !refused; ++i) {
    for (const char* rank : {"rank 0", "rank 1"}) refused = refused || rules.refusal(rank, kFailed, 0).has_value();
  }
  CHECK(refused);
}

TEST_CASE("who says that it is used wrongly is believed") {
  RestartRules rules(100);
  CHECK(has(rules.refusal("trainer", {.code = 2}, 1000), "status 2"));
}

}  // namespace
}  // namespace tributary::cli::restart_rules_test

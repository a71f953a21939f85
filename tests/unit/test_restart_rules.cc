#include <doctest/doctest.h>

#include "tools/cli/restart_rules.h"

namespace tributary::cli {
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
    CHECK(has(rules.refusal("trainer", status, 0), "no round was complete"));
  }
  for (std::uint64_t round = 1; round < 50; ++round) CHECK_FALSE(rules.refusal("trainer", kFailed, round));
  CHECK_FALSE(rules.refusal("trainer", kFailed, 49));
  CHECK_FALSE(rules.refusal("trainer", kFailed, 49));
  CHECK_FALSE(rules.refusal("another", kFailed, 49));
  CHECK(has(rules.refusal("trainer", kFailed, 49), "times in one round"));
}

TEST_CASE("who ends because a peer did made no error") {
  constexpr ExitStatus kPeerLost{.code = 76};
  RestartRules rules(10);
  for (int i = 0; i < 10; ++i) CHECK_FALSE(rules.refusal("trainer", kPeerLost, 0));
  CHECK(has(rules.refusal("trainer", kPeerLost, 5), "10 times within 10 rounds"));
}

TEST_CASE("who says that it is used wrongly is believed") {
  RestartRules rules(100);
  CHECK(has(rules.refusal("trainer", {.code = 2}, 1000), "status 2"));
}

}  // namespace
}  // namespace tributary::cli

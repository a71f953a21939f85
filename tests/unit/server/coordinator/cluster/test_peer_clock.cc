// Clocks of daemons that are not the coordinator's.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "tests/unit/expect.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::peer_clock_test {

using namespace testing;

TEST_CASE("a daemon's clock that is not the coordinator's is told once, and shown") {
  FullCluster cluster({.workers = 2, .servers = 1});
  constexpr std::uint64_t kNow = 1'700'000'000'000;
  cluster.clock_ms = kNow;
  const auto beats = [&](std::uint32_t w, std::int64_t ahead_ms) {
    Heartbeat beat{worker_incarnation(w), {}, {}};
    beat.clock_ms = kNow + static_cast<std::uint64_t>(ahead_ms);
    cluster.say(worker_peer(w), beat);
  };
  const auto told = [&](const std::string& words) {
    return std::ranges::count_if(cluster.logged, [&](const auto& line) { return contains(line, words); });
  };
  for (int i = 0; i < 3; ++i) beats(0, -3'600'000);
  for (int i = 0; i < 3; ++i) beats(1, -4000);
  CHECK(told("the clock of worker host0 is 3600 s behind the coordinator's") == 1);
  CHECK(told("the clock of worker host1") == 0);
  beats(1, -60'000);  // it came late
  CHECK(told("the clock of worker host1") == 0);
  beats(1, 3'600'000);
  CHECK(told("the clock of worker host1 is 3600 s ahead of the coordinator's") == 1);
  beats(0, 0);
  for (const auto& peer : cluster.core.peers()) {
    CAPTURE(peer.name);
    CHECK(peer.clock.empty() == (peer.name != "host1"));
  }
}

}  // namespace tributary::peer_clock_test

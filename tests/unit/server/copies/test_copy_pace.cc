#include <doctest/doctest.h>

#include "server/copies/copy_pace.h"

namespace tributary::copy_pace_test {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

// Bytes that a copy takes in so many seconds, a piece at a time, beside training that moves `rate` bytes a second.
std::uint64_t taken(std::uint64_t rate, std::uint64_t piece, std::uint64_t seconds, std::uint64_t pause_ms = 0) {
  CopyPace pace;
  std::uint64_t bytes = 0, trained = 0;
  for (std::uint64_t ms = 1; ms <= seconds * 1000; ++ms) {
    const bool pauses = pause_ms != 0 && ms % 100 < pause_ms;
    if (!pauses) trained += rate / 1000;
    if (!pace.may_go(trained, ms * kMs)) continue;
    pace.took(piece);
    bytes += piece;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a copy takes a small share of what training moves") {
  const double share = static_cast<double>(taken(100'000'000, 100'000, 20)) / (20 * 100e6);
  CHECK(share > 0.006);
  CHECK(share < 0.01);
}

TEST_CASE("a copy takes what it can where nothing is trained, and no more in a step's pauses") {
  CHECK(taken(0, 1'000'000, 3) > 1'900'000'000);
  CHECK(taken(100'000'000, 100'000, 20, 20) < 20'000'000);
}

TEST_CASE("a copy beside slow training gets on, and a large piece is paid for") {
  CHECK(taken(1000, 1000, 20) >= 19 * 256 * 1024);
  const auto large = static_cast<double>(taken(100'000'000, 20'000'000, 100));
  CHECK(large / (100 * 100e6) < 0.025);
}

}  // namespace tributary::copy_pace_test

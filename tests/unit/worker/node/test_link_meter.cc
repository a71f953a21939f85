#include <doctest/doctest.h>

#include <cstdint>

#include "worker/node/link_meter.h"

namespace tributary::link_meter_test {

namespace {

using tributary::LinkMeter;

constexpr std::uint64_t kMs = 1'000'000;

// `count` arrivals of `bytes`, `gap_ns` apart, from `now` on; returns the time of the last.
std::uint64_t arrive(LinkMeter& meter, std::uint64_t now, int count, std::uint64_t bytes, std::uint64_t gap_ns) {
  for (int i = 0; i < count; ++i) meter.on_bytes(bytes, now + static_cast<std::uint64_t>(i) * gap_ns);
  return now + static_cast<std::uint64_t>(count - 1) * gap_ns;
}

TEST_CASE("a steady stream is measured at its rate, however long it lasts") {
  for (int count : {20, 150, 5000}) {
    LinkMeter meter;
    const std::uint64_t last = arrive(meter, 7 * kMs, count, 65536, 2 * kMs);
    arrive(meter, last + 1000 * kMs, 1, 65536, kMs);  // the next stretch ends the first
    CHECK(meter.rate() == doctest::Approx(65536 / 0.002).epsilon(1e-9));
  }
}

TEST_CASE("the pauses between rounds do not count") {
  LinkMeter meter;
  std::uint64_t now = kMs;
  for (int round = 0; round < 10; ++round) now = arrive(meter, now, 40, 100'000, kMs) + 400 * kMs;
  arrive(meter, now, 1, 100'000, kMs);  // ends the last stretch
  CHECK(meter.rate() == doctest::Approx(100'000 / 0.001).epsilon(1e-9));
}

TEST_CASE("slow links with large payloads are measured too") {
  LinkMeter meter;
  arrive(meter, kMs, 30, 1 << 20, 90 * kMs);
  CHECK(meter.rate() == doctest::Approx((1 << 20) / 0.090).epsilon(1e-9));
}

TEST_CASE("a burst at the beginning or the end of a long stretch hardly counts") {
  LinkMeter meter;
  std::uint64_t now = arrive(meter, kMs, 10, 13'000, kMs / 10);  // what a token bucket had saved up
  now = arrive(meter, now + 2 * kMs, 120, 60'000, 2 * kMs);
  now = arrive(meter, now + kMs, 12, 60'000, kMs);  // the end: twice as fast, for 12 ms
  arrive(meter, now + 1000 * kMs, 1, 60'000, kMs);
  CHECK(meter.rate() > 30e6);
  CHECK(meter.rate() < 31e6);
}

TEST_CASE("a few payloads at once are no measurement") {
  LinkMeter meter;
  for (int burst = 0; burst < 100; ++burst) {
    arrive(meter, kMs + static_cast<std::uint64_t>(burst) * 1000 * kMs, 5, 1 << 20, 1000);
  }
  CHECK(meter.rate() == 0.0);
}

TEST_CASE("a rate of long ago is forgotten") {
  LinkMeter meter;
  std::uint64_t now = arrive(meter, kMs, 500, 1 << 20, kMs);
  const double fast = meter.rate();
  now = arrive(meter, now + 1000 * kMs, 45'000, 1 << 18, kMs);  // 45 s at a quarter
  CHECK(meter.rate() == doctest::Approx(fast / 4).epsilon(1e-9));
}

}  // namespace

}  // namespace tributary::link_meter_test

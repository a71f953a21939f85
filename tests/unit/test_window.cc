#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "worker/window.h"

namespace tributary {
namespace {

constexpr std::uint64_t kUnit = 1u << 20;
constexpr std::uint64_t kCap = 16u << 20;

// A link of `bytes_per_s` with `delay_ns` of propagation, kept as full as the window allows: acknowledgements come back
// in order.
class Link {
 public:
  Link(WindowController& window, double bytes_per_s, std::uint64_t delay_ns)
      : window_(window), bytes_per_s_(bytes_per_s), delay_ns_(delay_ns) {}

  void set_rate(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }

  // Sends `chunks` units; returns the bytes per second that arrived.
  double run(int chunks) {
    const std::uint64_t started = now_ns_;
    int to_send = chunks, to_come = chunks;
    while (to_come > 0) {
      while (to_send > 0 && window_.allows(in_flight_, kUnit)) {
        const auto serial = static_cast<std::uint64_t>(static_cast<double>(kUnit) / bytes_per_s_ * 1e9);
        link_free_ns_ = std::max(link_free_ns_, now_ns_) + serial;
        sent_.push_back({now_ns_, link_free_ns_ + delay_ns_, acknowledged_});
        in_flight_ += kUnit;
        max_in_flight_ = std::max(max_in_flight_, in_flight_);
        --to_send;
      }
      const Sent first = sent_.front();
      sent_.pop_front();
      now_ns_ = std::max(now_ns_, first.acknowledged_ns);
      in_flight_ -= kUnit;
      acknowledged_ += kUnit;
      window_.on_acknowledged(kUnit, first.at_ns, now_ns_, first.delivered_before, acknowledged_);
      --to_come;
    }
    return static_cast<double>(chunks) * static_cast<double>(kUnit) * 1e9 / static_cast<double>(now_ns_ - started);
  }
  std::uint64_t take_max_in_flight() { return std::exchange(max_in_flight_, 0); }

 private:
  struct Sent {
    std::uint64_t at_ns, acknowledged_ns, delivered_before;
  };
  WindowController& window_;
  double bytes_per_s_;
  const std::uint64_t delay_ns_;
  std::uint64_t now_ns_ = 1, link_free_ns_ = 0, in_flight_ = 0, acknowledged_ = 0, max_in_flight_ = 0;
  std::deque<Sent> sent_;
};

}  // namespace

TEST_CASE("a window starts at its cap and always lets one payload go") {
  const WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  CHECK(window.window_bytes() == kCap);
  CHECK(window.allows(0, 64u << 20));
  CHECK(window.allows(kCap - kUnit, kUnit));
  CHECK_FALSE(window.allows(kCap - kUnit + 1, kUnit));
  CHECK_FALSE(window.allows(1, 64u << 20));
}

TEST_CASE("samples without time or bytes change nothing") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  window.on_acknowledged(kUnit, 5, 5, 0, kUnit);
  window.on_acknowledged(kUnit, 6, 5, 0, kUnit);
  window.on_acknowledged(0, 5, 10, 0, 0);
  CHECK(window.window_bytes() == kCap);
  CHECK(window.base_rtt_ns() == 0);
}

TEST_CASE("on a slow link the window shrinks to about what drains in the target time, and the link stays full") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  const double rate = 250e6 / 8;  // 33 ms a unit: the queue's target is less than one payload
  Link link(window, rate, 200'000);
  link.run(60);
  link.take_max_in_flight();
  CHECK(link.run(60) > 0.95 * rate);
  CHECK(link.take_max_in_flight() <= 4 * kUnit);
  CHECK(window.window_bytes() >= 2 * kUnit);
}

TEST_CASE("on a fast link the window does not hold the stream back") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  const double rate = 1.25e9;
  Link link(window, rate, 100'000);
  link.run(200);
  CHECK(link.run(2000) > 0.95 * rate);
  CHECK(window.window_bytes() <= kCap);
}

TEST_CASE("the window follows a link that becomes slower and then faster again") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  Link link(window, 1e9, 1'000'000);
  link.run(500);
  const std::uint64_t fast = window.window_bytes();
  link.set_rate(5e7);
  link.run(200);
  CHECK(window.window_bytes() < fast / 2);
  link.set_rate(1e9);
  link.run(500);
  CHECK(link.run(500) > 0.9 * 1e9);
}

TEST_CASE("a cap below two units is the window") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kUnit / 2});
  window.on_acknowledged(kUnit, 0, 1000, 0, kUnit);
  CHECK(window.window_bytes() == kUnit / 2);
  CHECK(window.allows(0, kUnit));
  CHECK_FALSE(window.allows(1, kUnit));
}

}  // namespace tributary

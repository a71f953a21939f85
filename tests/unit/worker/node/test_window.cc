#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "worker/node/window.h"

namespace tributary::window_test {
namespace {

constexpr std::uint64_t kUnit = 1u << 20;
constexpr std::uint64_t kCap = 16u << 20;

// A link of `bytes_per_s` with `delay_ns` of propagation, kept as full as the window allows: acknowledgements come back
// in order.
class Link {
 public:
  Link(WindowController& window, double bytes_per_s, std::uint64_t delay_ns, std::uint64_t unit = kUnit)
      : window_(window), bytes_per_s_(bytes_per_s), delay_ns_(delay_ns), unit_(unit) {}

  void set_rate(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }

  // Sends `chunks` units; returns the bytes per second that arrived.
  double run(int chunks) {
    const std::uint64_t started = now_ns_;
    int to_send = chunks, to_come = chunks;
    while (to_come > 0) {
      while (to_send > 0 && window_.allows(in_flight_, unit_)) {
        const auto serial = static_cast<std::uint64_t>(static_cast<double>(unit_) / bytes_per_s_ * 1e9);
        link_free_ns_ = std::max(link_free_ns_, now_ns_) + serial;
        sent_.push_back({now_ns_, link_free_ns_ + delay_ns_});
        in_flight_ += unit_;
        max_in_flight_ = std::max(max_in_flight_, in_flight_);
        --to_send;
      }
      if (to_send > 0) window_.held_back();
      const Sent first = sent_.front();
      sent_.pop_front();
      now_ns_ = std::max(now_ns_, first.acknowledged_ns);
      in_flight_ -= unit_;
      window_.on_acknowledged(unit_, first.at_ns, now_ns_);
      --to_come;
    }
    return static_cast<double>(chunks) * static_cast<double>(unit_) * 1e9 / static_cast<double>(now_ns_ - started);
  }
  std::uint64_t take_max_in_flight() { return std::exchange(max_in_flight_, 0); }

 private:
  struct Sent {
    std::uint64_t at_ns, acknowledged_ns;
  };
  WindowController& window_;
  double bytes_per_s_;
  const std::uint64_t delay_ns_, unit_;
  std::uint64_t now_ns_ = 1, link_free_ns_ = 0, in_flight_ = 0, max_in_flight_ = 0;
  std::deque<Sent> sent_;
};

}  // namespace

TEST_CASE("a window starts with a payload for each server, two at least, and always lets one payload go") {
  CHECK(WindowController({.unit_bytes = kUnit, .cap_bytes = kCap}).window_bytes() == 2 * kUnit);
  const WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap, .peers = 5});
  CHECK(window.window_bytes() == 5 * kUnit);
  CHECK(window.allows(0, 64u << 20));
  CHECK(window.allows(4 * kUnit, kUnit));
  CHECK_FALSE(window.allows(4 * kUnit + 1, kUnit));
  CHECK_FALSE(window.allows(1, 64u << 20));
}

TEST_CASE("on one machine the window is the cap and stays there") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap, .over_link = false});
  Link link(window, 1e8, 100'000);
  link.run(100);
  CHECK(window.window_bytes() == kCap);
}

TEST_CASE("what tells nothing changes nothing") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  window.held_back();
  for (int i = 0; i < 20; ++i) {
    window.on_acknowledged(kUnit, 5, 5);
    window.on_acknowledged(kUnit, 6, 5);
    window.on_acknowledged(0, 5, 10);
    window.on_acknowledged(kUnit, 5, 1'000'000'000, false);
  }
  CHECK(window.window_bytes() == 2 * kUnit);
  CHECK(window.base_rtt_ns() == 0);
}

TEST_CASE("a window that holds nobody back does not change") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  for (std::uint64_t now = 1'000'000; now < 1'000'000'000; now += 1'000'000) {
    window.on_acknowledged(kUnit, now - 100'000, now);
  }
  CHECK(window.window_bytes() == 2 * kUnit);
  CHECK(window.base_rtt_ns() == 100'000);
}

TEST_CASE("on a slow link the window is as small as keeps the link full") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  const double rate = 250e6 / 8;  // 33 ms a unit: the queue's target is less than one payload
  Link link(window, rate, 200'000);
  link.run(60);
  link.take_max_in_flight();
  CHECK(link.run(60) > 0.95 * rate);
  CHECK(link.take_max_in_flight() == 2 * kUnit);
}

TEST_CASE("with payloads that are small for the link the queue settles at the target") {
  constexpr double kRate = 1.25e8;
  WindowController window({.unit_bytes = 64u << 10, .cap_bytes = kCap});
  Link link(window, kRate, 1'000'000, 64u << 10);
  link.run(2000);
  link.take_max_in_flight();
  CHECK(link.run(2000) > 0.98 * kRate);
  // 1 ms of delay, half a millisecond of sending, 4 ms of queue.
  const double target = kRate * 5.5e-3;
  CHECK(static_cast<double>(link.take_max_in_flight()) < 2.0 * target);
  CHECK(static_cast<double>(window.window_bytes()) > 0.6 * target);
}

TEST_CASE("on a fast link the window does not hold the stream back") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  const double rate = 1.25e9;
  Link link(window, rate, 100'000);
  link.run(200);
  CHECK(link.run(2000) > 0.95 * rate);
  CHECK(window.window_bytes() <= kCap);
}

TEST_CASE("on a long fast link the window grows to what it holds") {
  WindowController window({.unit_bytes = 256u << 10, .cap_bytes = kCap});
  constexpr double kRate = 1.25e8;
  Link link(window, kRate, 30'000'000, 256u << 10);  // 30 ms: 3.75 MB are under way
  link.run(2000);
  CHECK(link.run(1000) > 0.95 * kRate);
}

TEST_CASE("the window follows a link that becomes slower and then faster again") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  Link link(window, 1e9, 1'000'000);
  link.run(500);
  const std::uint64_t fast = window.window_bytes();
  link.set_rate(5e7);
  link.run(200);
  CHECK(window.window_bytes() < fast * 2 / 3);
  link.set_rate(1e9);
  link.run(500);
  CHECK(link.run(500) > 0.9 * 1e9);
}

TEST_CASE("a node that is ahead of the others stays at the floor, learns nothing there, and gets its window back") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap});
  Link link(window, 1e9, 1'000'000);
  link.run(500);
  const std::uint64_t level = window.window_bytes();
  REQUIRE(level > 4 * kUnit);
  window.set_held(level);
  CHECK(window.window_bytes() == level);
  window.set_held(level + 1);
  CHECK(window.window_bytes() == 2 * kUnit);
  CHECK_FALSE(window.allows(2 * kUnit, kUnit));
  link.run(100);
  window.set_held(0);
  CHECK(window.window_bytes() == level);
}

TEST_CASE("on one machine nobody is held back for being ahead") {
  WindowController window({.unit_bytes = kUnit, .cap_bytes = kCap, .over_link = false});
  window.set_held(100 * kCap);
  CHECK(window.window_bytes() == kCap);
}

TEST_CASE("a cap below two units is the window") {
  const WindowController window({.unit_bytes = kUnit, .cap_bytes = kUnit / 2});
  CHECK(window.window_bytes() == kUnit / 2);
  CHECK(window.allows(0, kUnit));
  CHECK_FALSE(window.allows(1, kUnit));
}

}  // namespace tributary::window_test

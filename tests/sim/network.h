// A virtual clock and a network that delays, reorders, duplicates and loses messages, all from one seed.
//
// Everything that happens in a simulation is an event in this queue: (time, sequence number, action). Equal times run
// in the order in which they were scheduled, so that a seed reproduces a run exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "tests/sim/random.h"

namespace tributary::sim {

struct NetworkOptions {
  std::uint64_t min_delay_ns = 50'000;
  std::uint64_t max_delay_ns = 2'000'000;
  double straggle = 0.02;  // probability that a message takes up to 50 times max_delay
  double duplicate = 0.0;
  double lose = 0.0;
};

struct NetworkStats {
  std::uint64_t sent = 0, delivered = 0, lost = 0, duplicated = 0;
};

class Network {
 public:
  Network(NetworkOptions options, std::uint64_t seed) : options_(options), random_(seed) {}

  std::uint64_t now_ns() const { return now_ns_; }
  // Runs `action` after `delay_ns` of virtual time.
  void after(std::uint64_t delay_ns, std::function<void()> action);
  // Runs `deliver` once per copy of the message that arrives, each after a delay of its own:
  // reordering comes by itself.
  void send(const std::function<void()>& deliver);
  // Runs the next event; false if there is none.
  bool step();
  const NetworkStats& stats() const { return stats_; }

 private:
  struct Event {
    std::uint64_t at_ns;
    std::uint64_t sequence;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };
  std::uint64_t delay();

  NetworkOptions options_;
  Random random_;
  NetworkStats stats_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t sequence_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace tributary::sim

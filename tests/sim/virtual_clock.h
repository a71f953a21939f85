// Everything that happens in a simulation is an event in this queue: (time, sequence number, action). Equal times run
// in the order in which they were scheduled, so that a seed reproduces a run exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace tributary::sim {

inline constexpr std::uint64_t kMs = 1'000'000;  // of virtual time, in its nanoseconds

class VirtualClock {
 public:
  std::uint64_t now_ns() const { return now_ns_; }
  // Runs `action` after `delay_ns` of virtual time.
  void after(std::uint64_t delay_ns, std::function<void()> action);
  // Runs the next event; false if there is none.
  bool step();

 private:
  struct Event {
    std::uint64_t at_ns;
    std::uint64_t sequence;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
    }
  };
  std::uint64_t now_ns_ = 0;
  std::uint64_t sequence_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace tributary::sim

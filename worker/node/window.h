// WindowController: how many unacknowledged bytes a worker lane may have under way. Pure.
//
// Too little leaves the link idle; too much fills queues on the way until TCP backs off, and lets the nodes drift apart
// (measured on emulated links, see docs/data-path.md). The controller steers by delay: it lets the acknowledgement time
// settle at base_rtt + target_queue, where base_rtt is the lowest time seen. Once per such time,
//     window = window * (base_rtt + target_queue) / mean acknowledgement time,        floor <= window <= cap
// (the law of FAST TCP, Wei et al. 2006), half of the way at a time and only if the window was what held the sender
// back. The floor is what keeps every server busy: a payload for each, two at least. It starts at the floor, and on a
// fast link is at the cap within some ten acknowledgement times.
//
// The law keeps queues short but does not equalize nodes: windows that differ stay different. Where servers' links
// bind, a node with the smaller window falls behind by a third of a round, and is then alone on links that it cannot
// fill. So a node that is ahead stays at the floor. A node is ahead if servers hold more of its pushes, for want of
// another node's, than `kLead` floors and than its window. No node waits for another: the last node is never held back.
//
// Where nothing crosses a link, there is no queue to keep short: the window is the cap. (On one machine's few cores a
// delay is a process that waits for its turn, and a small window made that worse: 30 % less throughput.)
#pragma once

#include <algorithm>
#include <cstdint>

namespace tributary {

class WindowController {
 public:
  struct Options {
    std::uint64_t unit_bytes = 1u << 20;  // the usual payload
    std::uint64_t cap_bytes = 16u << 20;
    std::uint64_t target_queue_ns = 4'000'000;
    std::uint32_t peers = 1;  // servers that the payloads go to
    bool over_link = true;    // false: the window is the cap
  };
  explicit WindowController(Options options);

  // May `bytes` more be sent while `in_flight` are unacknowledged? One unit may always be under way.
  bool allows(std::uint64_t in_flight, std::uint64_t bytes) const {
    return in_flight == 0 || in_flight + bytes <= window_bytes();
  }
  // Bytes of acknowledged pushes that wait for other nodes'.
  void set_held(std::uint64_t bytes) { ahead_ = options_.over_link && bytes > std::max(kLead * floor_, window_); }
  // There is something to send that the window does not allow now.
  void held_back() { held_back_ = true; }
  // Takes every acknowledgement, in the order of time, of a payload sent at `sent_ns`. tells: it measures the link (it
  // does not if the payload was repeated, because it may be for either copy: Karn's rule).
  void on_acknowledged(std::uint64_t bytes, std::uint64_t sent_ns, std::uint64_t now_ns, bool tells = true);

  std::uint64_t window_bytes() const { return ahead_ ? floor_ : window_; }
  std::uint64_t base_rtt_ns() const { return base_rtt_; }  // 0: not known yet

 private:
  static constexpr std::uint64_t kLead = 2;

  void end_period(std::uint64_t now_ns);

  const Options options_;
  const std::uint64_t floor_;
  std::uint64_t window_;
  std::uint64_t base_rtt_ = 0;
  bool held_back_ = false;
  bool ahead_ = false;
  // The period under way.
  std::uint64_t began_ns_ = 0;
  std::uint64_t samples_ = 0, rtt_sum_ns_ = 0;
};

}  // namespace tributary

// WindowController: how many unacknowledged bytes a connection may have under way. Pure.
//
// Too little leaves the link idle, too much fills queues on the way until TCP backs off (measured on emulated links,
// see ARCHITECTURE.md). The controller finds the link's rate from acknowledgements
// and allows what drains in a target time:
//     window = clamp(rate * (base_rtt + kTargetQueue), 2 units, cap)
// where rate is the highest delivery rate seen in the last few round trips and base_rtt
// the lowest acknowledgement time seen.
#pragma once

#include <cstdint>

namespace tributary {

class WindowController {
 public:
  struct Options {
    std::uint64_t unit_bytes = 1u << 20;  // the usual payload
    std::uint64_t cap_bytes = 16u << 20;
    std::uint64_t target_queue_ns = 10'000'000;
  };
  explicit WindowController(Options options);

  // May `bytes` more be sent while `in_flight` are unacknowledged? One unit may always be under way.
  bool allows(std::uint64_t in_flight, std::uint64_t bytes) const {
    return in_flight == 0 || in_flight + bytes <= window_;
  }
  // A payload of `bytes` sent at `sent_ns` was acknowledged at `now_ns`; `delivered_before` and `delivered_now` are the
  // connection's totals of acknowledged bytes when it was sent and now (delivery-rate sample as in BBR,
  // Cardwell et al. 2016).
  void on_acknowledged(std::uint64_t bytes, std::uint64_t sent_ns, std::uint64_t now_ns, std::uint64_t delivered_before,
                       std::uint64_t delivered_now);
  std::uint64_t window_bytes() const { return window_; }
  double rate_bytes_per_s() const { return rate_; }
  std::uint64_t base_rtt_ns() const { return base_rtt_; }

 private:
  Options options_;
  std::uint64_t window_;
  double rate_ = 0.0;
  std::uint64_t base_rtt_ = 0;
  std::uint64_t epoch_started_ns_ = 0;
  double epoch_best_rate_ = 0.0;
  double previous_best_rate_ = 0.0;
};

}  // namespace tributary

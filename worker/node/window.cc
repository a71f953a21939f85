#include "worker/node/window.h"

#include <algorithm>

namespace tributary {
namespace {

constexpr std::uint64_t kMinSamples = 4;  // in a period: one late acknowledgement is no delay
constexpr double kMost = 2.0;             // what the law may ask for
constexpr double kGain = 0.5;  // what is done of it: the effect of a step shows one acknowledgement time later

}  // namespace

WindowController::WindowController(Options options)
    : options_(options),
      floor_(options.over_link
                 ? std::min(std::max<std::uint64_t>(2, options.peers) * options.unit_bytes, options.cap_bytes)
                 : options.cap_bytes),
      window_(floor_) {}

void WindowController::on_acknowledged(std::uint64_t bytes, std::uint64_t sent_ns, std::uint64_t now_ns, bool tells) {
  if (!tells || now_ns <= sent_ns || bytes == 0) return;
  const std::uint64_t rtt = now_ns - sent_ns;
  if (base_rtt_ == 0 || rtt < base_rtt_) base_rtt_ = rtt;
  // A period holds only payloads sent within it, so that what it says is the effect of this window, not the last one.
  if (sent_ns < began_ns_) return;
  ++samples_;
  rtt_sum_ns_ += rtt;
  if (samples_ >= kMinSamples && now_ns - began_ns_ >= base_rtt_) end_period(now_ns);
}

void WindowController::end_period(std::uint64_t now_ns) {
  if (held_back_ && !ahead_) {
    const double mean = static_cast<double>(rtt_sum_ns_) / static_cast<double>(samples_);
    const double law = std::min(static_cast<double>(base_rtt_ + options_.target_queue_ns) / mean, kMost);
    const double next = static_cast<double>(window_) * (1.0 + kGain * (law - 1.0));
    window_ = std::clamp(static_cast<std::uint64_t>(next), floor_, options_.cap_bytes);
  }
  held_back_ = false;
  began_ns_ = now_ns;
  samples_ = rtt_sum_ns_ = 0;
}

}  // namespace tributary

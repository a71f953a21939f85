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

// ---- The meter ----

void LinkMeter::on_bytes(std::uint64_t bytes, std::uint64_t now_ns) {
  if (arrivals_ > 0 && now_ns - last_ns_ > longest_gap()) {
    finish(short_stretches_, now_ns);
    arrivals_ = 0;
  }
  if (arrivals_ == 0) {
    first_ns_ = now_ns;
    bytes_ = 0;
  } else {
    bytes_ += bytes;
  }
  last_ns_ = now_ns;
  ++arrivals_;
  if (last_ns_ - first_ns_ < kPiece || arrivals_ < kArrivals) return;
  finish(whole_pieces_, now_ns);
  first_ns_ = now_ns;  // the next piece begins with this arrival
  bytes_ = 0;
  arrivals_ = 1;
}

std::uint64_t LinkMeter::longest_gap() const {
  return arrivals_ < 2 ? kFirstGap : std::max(kIdle, 4 * (last_ns_ - first_ns_) / (arrivals_ - 1));
}

void LinkMeter::finish(Recent& samples, std::uint64_t now_ns) const {
  if (arrivals_ < kArrivals || last_ns_ - first_ns_ < kShortest) return;
  samples.add(static_cast<double>(bytes_) * 1e9 / static_cast<double>(last_ns_ - first_ns_), now_ns);
}

void LinkMeter::Recent::add(double sample, std::uint64_t now_ns) {
  if (now_ns - since_ns > kMemory) {
    previous = now_ns - since_ns > 2 * kMemory ? 0.0 : current;
    current = 0.0;
    since_ns = now_ns;
  }
  current = std::max(current, sample);
}

}  // namespace tributary

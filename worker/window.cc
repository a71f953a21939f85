#include "worker/window.h"

#include <algorithm>

namespace tributary {
namespace {

// The rate is the best of the current and the previous epoch, so that a link that became slower is noticed within two.
constexpr std::uint64_t kMinEpochNs = 50'000'000;
constexpr std::uint64_t kEpochRtts = 8;

}  // namespace

WindowController::WindowController(Options options) : options_(options), window_(options.cap_bytes) {}

void WindowController::on_acknowledged(std::uint64_t bytes, std::uint64_t sent_ns, std::uint64_t now_ns,
                                       std::uint64_t delivered_before, std::uint64_t delivered_now) {
  if (now_ns <= sent_ns || bytes == 0) return;
  const std::uint64_t rtt = now_ns - sent_ns;
  if (base_rtt_ == 0 || rtt < base_rtt_) base_rtt_ = rtt;
  const double rate = static_cast<double>(delivered_now - delivered_before) * 1e9 / static_cast<double>(rtt);
  const std::uint64_t epoch = std::max(kMinEpochNs, kEpochRtts * base_rtt_);
  if (now_ns - epoch_started_ns_ > epoch) {
    epoch_started_ns_ = now_ns;
    previous_best_rate_ = epoch_best_rate_;
    epoch_best_rate_ = 0.0;
  }
  epoch_best_rate_ = std::max(epoch_best_rate_, rate);
  rate_ = std::max(epoch_best_rate_, previous_best_rate_);
  const double drained = rate_ * static_cast<double>(base_rtt_ + options_.target_queue_ns) / 1e9;
  const std::uint64_t floor = std::min(2 * options_.unit_bytes, options_.cap_bytes);
  window_ = std::clamp(static_cast<std::uint64_t>(drained), floor, options_.cap_bytes);
}

}  // namespace tributary

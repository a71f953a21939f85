// CopyPace: when a copy of a snapshot may take more of the network, so that training does not feel it: a small share of
// the bytes of its messages, and all there is where nothing is trained. Pure: time and counts are arguments.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tributary {

class CopyPace {
 public:
  static constexpr std::uint64_t kIdleNs = 1'000'000'000;    // without a message of training's, nothing is trained
  static constexpr std::uint64_t kLookNs = 1'000'000'000;    // over which their rate is measured
  static constexpr double kShare = 1.0 / 128.0;              // of it
  static constexpr double kLeastBytesPerS = 256.0 * 1024.0;  // whatever they are
  static constexpr double kMostDebtBytes = 64.0 * 1024.0 * 1024.0;

  // trained: bytes of training's messages since this process began. now_ns must not go back.
  bool may_go(std::uint64_t trained, std::uint64_t now_ns) {
    if (last_ns_ == 0) look_ns_ = last_ns_ = now_ns, at_look_ = last_ = trained;
    const double passed_s = static_cast<double>(now_ns - last_ns_) * 1e-9;
    last_ns_ = now_ns;
    if (trained != last_) moved_ns_ = now_ns;
    last_ = trained;
    if (now_ns >= look_ns_ + kLookNs) {
      rate_ = static_cast<double>(trained - at_look_) / (static_cast<double>(now_ns - look_ns_) * 1e-9);
      look_ns_ = now_ns;
      at_look_ = trained;
    }
    credit_ = std::min(0.0, credit_ + passed_s * std::max(kLeastBytesPerS, rate_ * kShare));
    return now_ns >= moved_ns_ + kIdleNs || credit_ >= 0.0;
  }
  void took(std::uint64_t bytes) { credit_ = std::max(-kMostDebtBytes, credit_ - static_cast<double>(bytes)); }

 private:
  double rate_ = 0.0;    // training's, bytes a second
  double credit_ = 0.0;  // bytes that may be taken beside it; at most 0
  std::uint64_t last_ = 0, at_look_ = 0;
  std::uint64_t last_ns_ = 0, look_ns_ = 0, moved_ns_ = 0;
};

}  // namespace tributary

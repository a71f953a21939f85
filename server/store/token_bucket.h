// TokenBucket: how long to wait so that bytes leave at most at a given rate. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tributary {

class TokenBucket {
 public:
  // bytes_per_s: the rate, 0 for no limit. burst: bytes that may go at once after a pause.
  TokenBucket(std::uint64_t bytes_per_s, std::uint64_t burst)
      : rate_(static_cast<double>(bytes_per_s)), burst_(static_cast<double>(burst)), tokens_(burst_) {}
  // For a disk: the burst is small, so that the disk sees a steady stream.
  static TokenBucket of_disk(std::uint64_t bytes_per_s) { return {bytes_per_s, bytes_per_s / 20}; }

  // Takes `bytes` now, going into debt if need be, and returns the nanoseconds until the debt is paid: the caller waits
  // that long before it takes again. So a piece larger than the burst passes too, at the rate. now_ns must not go back.
  std::uint64_t take(std::uint64_t bytes, std::uint64_t now_ns) {
    if (rate_ <= 0.0) return 0;
    if (now_ns > last_ns_) {
      tokens_ = std::min(burst_, tokens_ + rate_ * static_cast<double>(now_ns - last_ns_) * 1e-9);
      last_ns_ = now_ns;
    }
    tokens_ -= static_cast<double>(bytes);
    return tokens_ >= 0.0 ? 0 : static_cast<std::uint64_t>(-tokens_ / rate_ * 1e9);
  }

 private:
  double rate_;
  double burst_;
  double tokens_;
  std::uint64_t last_ns_ = 0;
};

}  // namespace tributary

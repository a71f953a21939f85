// LinkMeter: the rate of a direction of this node's link, from when payloads arrive. Pure.
//
// Between rounds nothing moves, so an average says little of the link. The meter looks at busy stretches: arrivals
// without a gap. A stretch is cut into pieces of at least kPiece, each giving one sample: the bytes after its first
// arrival over the time from its first arrival to its last. rate() is the best sample of the last 10 to 20 seconds.
// That is the link's payload rate if the exchange is bound by the link, and less if anything else binds it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tributary {

class LinkMeter {
 public:
  void on_bytes(std::uint64_t bytes, std::uint64_t now_ns) {
    if (arrivals_ > 0 && now_ns - last_ns_ > longest_gap()) {
      finish(now_ns);
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
    finish(now_ns);
    first_ns_ = now_ns;  // the next piece begins with this arrival
    bytes_ = 0;
    arrivals_ = 1;
  }

  // Payload bytes per second; 0 if there was no busy stretch yet.
  double rate() const { return std::max(best_, previous_best_); }

 private:
  static constexpr std::uint64_t kPiece = 100'000'000;     // ns
  static constexpr std::uint64_t kShortest = 5'000'000;    // of a stretch that counts
  static constexpr std::uint64_t kArrivals = 8;            // in it
  static constexpr std::uint64_t kIdle = 20'000'000;       // a gap at least
  static constexpr std::uint64_t kFirstGap = 200'000'000;  // when there is no earlier gap to compare with
  static constexpr std::uint64_t kMemory = 10'000'000'000;

  std::uint64_t longest_gap() const {
    return arrivals_ < 2 ? kFirstGap : std::max(kIdle, 4 * (last_ns_ - first_ns_) / (arrivals_ - 1));
  }
  void finish(std::uint64_t now_ns) {
    if (arrivals_ < kArrivals || last_ns_ - first_ns_ < kShortest) return;
    if (now_ns - epoch_ns_ > kMemory) {
      previous_best_ = now_ns - epoch_ns_ > 2 * kMemory ? 0.0 : best_;
      best_ = 0.0;
      epoch_ns_ = now_ns;
    }
    best_ = std::max(best_, static_cast<double>(bytes_) * 1e9 / static_cast<double>(last_ns_ - first_ns_));
  }

  std::uint64_t first_ns_ = 0, last_ns_ = 0, bytes_ = 0, arrivals_ = 0;
  std::uint64_t epoch_ns_ = 0;
  double best_ = 0.0, previous_best_ = 0.0;
};

}  // namespace tributary

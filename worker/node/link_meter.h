// LinkMeter: the rate of a direction of this node's link, from when payloads arrive. Pure.
//
// Between rounds nothing moves, so an average says little of the link. The meter looks at busy stretches: arrivals
// without a gap. A stretch is cut into pieces of at least kPiece, each giving one sample: the bytes after its first
// arrival over the time from its first arrival to its last. rate() is the best sample of the last 10 to 20 seconds.
// Bursts that a rate limiter lets pass make short samples too high, so stretches shorter than a piece count only while
// there are no whole pieces. The result is the link's payload rate if the exchange is bound by the link, and less if
// anything else binds it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tributary {

class LinkMeter {
 public:
  void on_bytes(std::uint64_t bytes, std::uint64_t now_ns) {
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

  // Payload bytes per second; 0 if there was no busy stretch yet.
  double rate() const { return whole_pieces_.best() > 0.0 ? whole_pieces_.best() : short_stretches_.best(); }

 private:
  static constexpr std::uint64_t kPiece = 200'000'000;     // ns
  static constexpr std::uint64_t kShortest = 5'000'000;    // of a stretch that counts
  static constexpr std::uint64_t kArrivals = 8;            // in it
  static constexpr std::uint64_t kIdle = 20'000'000;       // a gap at least
  static constexpr std::uint64_t kFirstGap = 200'000'000;  // when there is no earlier gap to compare with
  static constexpr std::uint64_t kMemory = 10'000'000'000;

  // The best sample since one or two multiples of kMemory.
  struct Recent {
    double current = 0.0, previous = 0.0;
    std::uint64_t since_ns = 0;
    void add(double sample, std::uint64_t now_ns) {
      if (now_ns - since_ns > kMemory) {
        previous = now_ns - since_ns > 2 * kMemory ? 0.0 : current;
        current = 0.0;
        since_ns = now_ns;
      }
      current = std::max(current, sample);
    }
    double best() const { return std::max(current, previous); }
  };

  std::uint64_t longest_gap() const {
    return arrivals_ < 2 ? kFirstGap : std::max(kIdle, 4 * (last_ns_ - first_ns_) / (arrivals_ - 1));
  }
  void finish(Recent& samples, std::uint64_t now_ns) const {
    if (arrivals_ < kArrivals || last_ns_ - first_ns_ < kShortest) return;
    samples.add(static_cast<double>(bytes_) * 1e9 / static_cast<double>(last_ns_ - first_ns_), now_ns);
  }

  std::uint64_t first_ns_ = 0, last_ns_ = 0, bytes_ = 0, arrivals_ = 0;
  Recent whole_pieces_, short_stretches_;
};

}  // namespace tributary

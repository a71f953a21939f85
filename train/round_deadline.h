// RoundDeadline: decides when a rank stops computing in a work-weighted round (sync.deadline_ms). Pure.
//
// A round has so much time from when its parameters are there. The rank's sum by then is its gradient, weighted by its
// samples; a micro-batch is not begun if, by the time of the last one, it would not be done in time. The first is
// always done: every rank has a part in every round.
#pragma once

#include <cstdint>

namespace tributary::train {

class RoundDeadline {
 public:
  explicit RoundDeadline(std::uint64_t limit_ns) : limit_ns_(limit_ns) {}

  // The parameters of a round are there.
  void begin(std::uint64_t now_ns) { begun_ns_ = last_ns_ = now_ns; }
  // A micro-batch is done. Is there time for another one?
  bool another(std::uint64_t now_ns) {
    const std::uint64_t took = now_ns - last_ns_;
    last_ns_ = now_ns;
    return now_ns - begun_ns_ + took <= limit_ns_;
  }

 private:
  std::uint64_t limit_ns_;
  std::uint64_t begun_ns_ = 0, last_ns_ = 0;
};

}  // namespace tributary::train

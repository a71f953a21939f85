// PartFetch: fetches the large part of a rank's state, part by part, from the daemon that has it. Pure: parts in,
// requests out; its owner stores the bytes. Both daemons use it: the coordinator for its snapshots' parts, a worker for
// those that its trainers lack.
//
// Invariants: parts are taken in order, each once; at most kWindow are requested and not taken.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/patience.h"
#include "common/wire/messages.h"

namespace tributary {

class PartFetch {
 public:
  static constexpr std::uint64_t kWindow = 4;
  static constexpr std::uint64_t kRepeatMs = 2'000;     // without a part: requested again
  static constexpr std::uint64_t kPatienceMs = 30'000;  // without a part, or a notice that it comes: given up

  PartFetch(JobId job, const LargePart& large, std::uint64_t now_ms);

  JobId job() const { return job_; }
  const LargePart& large() const { return large_; }
  // Returns the requests to send now.
  std::vector<WantPart> wants(std::uint64_t now_ms);
  // Returns whether this is the next part: its bytes then belong at part.offset.
  bool take(const StatePart& part, std::uint64_t now_ms);
  // Restarts the time-out: the other daemon still waits for the part, with a time-out of its own.
  void comes(std::uint64_t now_ms) { patience_.renew(now_ms); }
  std::uint64_t taken() const { return taken_; }  // bytes
  bool ended() const { return taken_ == large_.bytes; }
  bool right() const;  // its checksum is. REQUIRES: ended()
  bool given_up(std::uint64_t now_ms) { return patience_.over(taken_, now_ms); }

 private:
  JobId job_;
  LargePart large_;
  std::uint64_t taken_ = 0, asked_ = 0;  // bytes from the beginning
  std::uint64_t asked_ms_ = 0;
  Checksum128 checksum_;
  Patience patience_;
};

}  // namespace tributary

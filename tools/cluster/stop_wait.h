// StopWait: waits for daemons that are stopping, for as long as they make progress. A daemon gives up by itself when
// nothing moves any more (stop_timeout_s), so the wait for one that answers has no limit; it ends for a daemon that has
// not answered for the limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "common/base/patience.h"
#include "tools/cluster/process.h"

namespace tributary {

class StopWait {
 public:
  // Does the daemon answer within the time that is left? Called on the waiting thread. An immediate error, as from a
  // daemon whose pages are closed already, is no answer, and no end either.
  using Ask = std::function<bool(std::chrono::milliseconds)>;

  // REQUIRES: the daemons were just now asked to stop.
  explicit StopWait(std::chrono::milliseconds limit);
  // True once the process has ended, false if it neither ended nor answered for the limit. An answer of one of several
  // counts for all.
  bool ended(Process& process, const Ask& answers);

 private:
  Patience patience_;
  std::uint64_t answers_ = 0;
};

}  // namespace tributary

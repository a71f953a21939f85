// StopWait: waits for daemons that were told to stop, for as long as they get on. A daemon gives up by itself when
// nothing moves any more (stop_timeout_s), so one that answers is left alone; one that has not answered for the limit
// is not waited for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "common/base/patience.h"
#include "tools/cluster/process.h"

namespace tributary {

class StopWait {
 public:
  // Does it answer within the time that is left? Called on the waiting thread. An error that comes at once, as from a
  // daemon whose pages are closed already, is no answer, and no end either.
  using Ask = std::function<bool(std::chrono::milliseconds)>;

  // They were told just now.
  explicit StopWait(std::chrono::milliseconds limit);
  // True once it has ended, false if it neither ended nor answered for the limit. Of several an answer of one counts
  // for all.
  bool ended(Process& process, const Ask& answers);

 private:
  Patience patience_;
  std::uint64_t answers_ = 0;
};

}  // namespace tributary

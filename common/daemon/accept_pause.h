// AcceptPause: how long a listener stays out of the poll after it could not accept for want of descriptors or memory.
// Who waits in its queue keeps it ready, so a thread that polled it on would do nothing else. Whoever has the listener
// owns it.
#pragma once

#include <cstdint>

namespace tributary {

class AcceptPause {
 public:
  static constexpr std::uint64_t kMs = 1000;

  void begin(std::uint64_t now_ms) { until_ms_ = now_ms + kMs; }
  bool over(std::uint64_t now_ms) const { return now_ms >= until_ms_; }

 private:
  std::uint64_t until_ms_ = 0;
};

}  // namespace tributary

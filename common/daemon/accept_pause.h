// AcceptPause: keeps a listener out of the poll for a while after it could not accept for want of descriptors or
// memory. Peers in its queue keep it ready, so a thread that continued to poll it would do nothing else.
//
// Owner: the listener's owner.
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

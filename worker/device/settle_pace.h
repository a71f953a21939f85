// How often communicators are asked whether a group's collectives are on their streams. With communicators that do not
// block, NCCL launches on a thread of its own, started at the end of the group. The collectives are hardly ever on
// their streams at once, and mostly some tens of microseconds later: a sleep of a millisecond would waste that time per
// group.
#pragma once

#include <cstdint>

namespace tributary {

inline constexpr std::uint64_t kSettleSpinNs = 200'000;     // after a group's end: asked continuously
inline constexpr std::uint64_t kSettleStepNs = 75'000;      // from then on
inline constexpr std::uint64_t kConnectStepNs = 1'000'000;  // while communicators are being made, which takes seconds

// Returns when to ask next, at `now_ns`, about a group that ended at `since_ns`; not later than now: at once.
constexpr std::uint64_t next_ask_ns(std::uint64_t since_ns, std::uint64_t now_ns) {
  return now_ns < since_ns + kSettleSpinNs ? now_ns : now_ns + kSettleStepNs;
}

}  // namespace tributary

// The pause of a trainer before it attaches again, after the `idle`th time in a row (from 1) that no round was
// completed in its view, or it found no view. Pure; the simulator's trainers use it, too.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/config/config.h"

namespace tributary::train {

inline constexpr std::chrono::milliseconds kFirstAttachPause{25};
inline constexpr std::chrono::milliseconds kLongestAttachPause{5'000};

// view_ran: the trainer had attached, and its view was cut; otherwise the unreachable daemon may take its time. In an
// elastic job the next view waits for its nodes for a while, and the pause is well within that. Otherwise nodes would
// take turns: each would continue without those that pause, until these are back and end its view.
inline std::chrono::milliseconds attach_pause(const MembershipConfig& membership, std::uint32_t idle, bool view_ran) {
  const bool awaited = view_ran && membership.on_worker_loss == OnWorkerLoss::kContinue;
  const std::chrono::milliseconds longest =
      awaited ? std::clamp(std::chrono::milliseconds(membership.rejoin_ms / 2), kFirstAttachPause, kLongestAttachPause)
              : kLongestAttachPause;
  return std::min(kFirstAttachPause * (1 << std::min(idle - 1, 10u)), longest);
}

}  // namespace tributary::train

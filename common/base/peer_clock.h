// PeerClock: how far a daemon's time of day is ahead of the coordinator's, by its heartbeats. Times in logs and in
// manifests of checkpoints compare only if clocks agree; nothing else depends on them. Pure.
//
// A late heartbeat makes a clock seem slow, never fast: so of all heartbeats, the one least behind counts.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace tributary {

class PeerClock {
 public:
  static constexpr std::int64_t kSlackMs = 5000;  // a heartbeat and a half, and a busy machine

  // Takes both times, in ms since 1970; 0: not known. Returns whether the clocks have just turned out to differ.
  bool note(std::uint64_t theirs_ms, std::uint64_t ours_ms) {
    if (theirs_ms == 0 || ours_ms == 0) return false;
    const auto ahead = static_cast<std::int64_t>(theirs_ms) - static_cast<std::int64_t>(ours_ms);
    const bool differed = differs();
    if (!ahead_ms_ || ahead > *ahead_ms_) ahead_ms_ = ahead;
    return differs() && !differed;
  }
  bool differs() const { return ahead_ms_ && std::llabs(*ahead_ms_) > kSlackMs; }
  // "3600 s ahead of server 0's: ..."; "": as far as known the clocks agree.
  std::string in_words() const {
    if (!differs()) return {};
    return std::to_string(std::llabs(*ahead_ms_) / 1000) + " s " + (*ahead_ms_ > 0 ? "ahead of" : "behind") +
           " the coordinator's: times in logs do not compare; set it (NTP)";
  }

 private:
  std::optional<std::int64_t> ahead_ms_;
};

}  // namespace tributary

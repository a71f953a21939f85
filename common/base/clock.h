// The clocks of the shells; the cores get the time as an argument. The clock for durations is monotonic, and has no
// meaning outside this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tributary {

inline std::uint64_t steady_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

inline std::uint64_t steady_ms() {
  return steady_ns() / 1'000'000;
}

// The time of day in milliseconds since 1970.
std::uint64_t wall_ms();
// Returns the time of day in ISO 8601, UTC and whole seconds: 2026-01-31T12:00:00Z. For people who read records.
std::string utc_now();
std::string utc_at(std::uint64_t wall_ms);

// A stop signal that follows the first within this time belongs to it; a later one means "at once". The kernel sends a
// parent-death signal again for each thread of a dying parent, and Ctrl-C reaches a process from the terminal and from
// its parent.
inline constexpr std::uint64_t kSameStopSignalMs = 1000;

}  // namespace tributary

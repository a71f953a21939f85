// Exit codes of all programs, besides 0: which failures a supervisor may retry, and which not.
#pragma once

namespace tributary {

inline constexpr int kExitFailed = 1;    // an address taken, a store that cannot be opened, a stop that took too long
inline constexpr int kExitUsage = 2;     // command line or configuration
inline constexpr int kExitStopped = 75;  // stopped cleanly before the job was complete: run again to continue
inline constexpr int kExitSignal = 128;  // plus the number of the second signal

}  // namespace tributary

// Exit codes of all programs, beside 0: what a supervisor may retry, and what it may not.
#pragma once

namespace tributary {

inline constexpr int kExitFailed = 1;    // an address taken, a store that cannot be opened, a stop that took too long
inline constexpr int kExitUsage = 2;     // command line or configuration
inline constexpr int kExitStopped = 75;  // stopped in good order before the job was complete: run again to go on
inline constexpr int kExitSignal = 128;  // plus the number of the second signal

}  // namespace tributary

// StallWatch: times in which the machine itself ran nothing, because what it runs on gave it no processor (a hypervisor
// that holds guests to a share of its cores stops all of theirs at once, for some ten milliseconds). No scheduling
// inside the machine makes up for those, so a measurement of pauses takes them out.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

namespace tributary::bench {

struct Stall {
  std::chrono::steady_clock::time_point begin, end;
};

// A thread of real-time priority on every core wakes up each millisecond. If all of them were late at the same time,
// that was a stall; one alone may have waited for a system call that cannot be interrupted.
class StallWatch {
 public:
  // Shorter ones are not told from timers that are late.
  static constexpr std::chrono::milliseconds kShortest{3};

  StallWatch();
  // False: the system gives this process no real-time priority (CAP_SYS_NICE), or no threads; nothing is known then.
  bool watches() const { return watches_; }
  // Ends the watch. Ascending, apart from each other; empty if !watches().
  std::vector<Stall> finish();

 private:
  std::vector<std::vector<Stall>> late_;  // by core
  bool watches_ = false;
  std::vector<std::jthread> threads_;  // last: joined before what they write to goes
};

// The times that both have. Ascending each, and so is the result.
std::vector<Stall> in_both(const std::vector<Stall>& a, const std::vector<Stall>& b);
// How much of the time from `begin` to `end` was not stalled, in milliseconds.
double milliseconds_without(const std::vector<Stall>& stalls, std::chrono::steady_clock::time_point begin,
                            std::chrono::steady_clock::time_point end);

}  // namespace tributary::bench

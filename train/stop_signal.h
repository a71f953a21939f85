// StopSignal: SIGINT and SIGTERM as a request to stop at the next round boundary. A second signal, a second or more
// later (kSameStopSignalMs), ends the process at once, as it would without us.
//
// A handler and not a blocked signal with signalfd: a library's thread that started before main() would take the signal.
#pragma once

#include <chrono>
#include <csignal>
#include <string>

namespace tributary::train {

// At most one at a time. While armed, the two signals are only noted; otherwise they do what they did before.
class StopSignal {
 public:
  StopSignal();  // suspended
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void arm();
  void suspend();
  bool requested() const;
  // Returns whether a stop is requested that has not been answered; true only once.
  bool unanswered();
  // Sleeps for `length`, or until a stop is requested.
  void sleep(std::chrono::milliseconds length) const;
  std::string name() const;  // "SIGINT"; empty: not requested

 private:
  bool armed_ = false, answered_ = false;
  struct sigaction interrupt_before_ {};
  struct sigaction terminate_before_ {};
};

}  // namespace tributary::train

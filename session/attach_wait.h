// AttachWait: the worker's reply to an attach, which may take until all members of the job are there. Meanwhile the
// worker says now and then who is missing and how far they are, and so does the session (SessionOptions::note). The wait
// ends when nothing has got on for the attach's time-out, or when this rank is to stop (SessionOptions::stops).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/patience.h"
#include "session/attach_socket.h"
#include "session/session.h"
#include "session/stop_question.h"

namespace tributary {

class AttachWait {
 public:
  // Before it is said for whom an attach waits, and between two times.
  static constexpr std::chrono::milliseconds kQuiet{3'000}, kNoteInterval{10'000};
  using Clock = std::chrono::steady_clock;

  // began: the attach. The options must outlive it.
  AttachWait(const SessionOptions& options, Clock::time_point began);

  // Whatever is not about waiting. kStopped: this rank is to stop. kTimeout: its patience is over; timed_out() says that
  // in words.
  Result<AttachReceived> reply(AttachSocket& socket);
  Error timed_out() const;

 private:
  Clock::time_point deadline() const;
  bool got_on() const;  // something has, since the beginning
  std::string who() const;
  std::string how_long() const;  // "30 s of 120 s"
  void note();

  const SessionOptions& options_;
  StopQuestion stops_;
  const Clock::time_point began_;
  Patience patience_;
  Clock::time_point note_at_;
  std::string missing_;  // as the worker said last
};

}  // namespace tributary

// AttachWait: the worker's reply to an attach, which may take until all members of the job are there. Meanwhile the
// worker says now and then who is missing, and so does the session (SessionOptions::note); the wait ends when this rank
// is to stop (SessionOptions::stops).
#pragma once

#include <chrono>
#include <string>

#include "session/attach_socket.h"
#include "session/session.h"
#include "session/stop_question.h"

namespace tributary {

class AttachWait {
 public:
  // Before it is said for whom an attach waits, and between two times.
  static constexpr std::chrono::milliseconds kQuiet{3'000}, kNoteInterval{10'000};
  using Clock = std::chrono::steady_clock;

  // The options must outlive it.
  AttachWait(const SessionOptions& options, Clock::time_point deadline)
      : options_(options), stops_(options.stops), deadline_(deadline), note_at_(Clock::now() + kQuiet) {}

  // Whatever is not about waiting. kStopped: this rank is to stop. kTimeout: the deadline is over; timed_out() says it
  // in words.
  Result<AttachReceived> reply(AttachSocket& socket);
  Error timed_out() const;

 private:
  std::string who() const;
  std::string how_long() const;  // "30 s of 120 s"
  void note();

  const SessionOptions& options_;
  StopQuestion stops_;
  const Clock::time_point deadline_;
  Clock::time_point note_at_;
  std::string missing_;  // as the worker said last
};

}  // namespace tributary

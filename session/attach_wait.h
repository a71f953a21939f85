// AttachWait: waits for the worker's reply to an attach, which comes when all members of the job are there. Meanwhile
// the worker reports missing members and their progress, and the session forwards this (SessionOptions::note). The wait
// ends without progress for the attach's time-out, or when this rank is to stop (SessionOptions::stops).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/patience.h"
#include "session/session.h"
#include "session/shared/attach_socket.h"
#include "session/stop_question.h"

namespace tributary {

class AttachWait {
 public:
  // Times before the first note, and between two notes.
  static constexpr std::chrono::milliseconds kQuiet{3'000}, kNoteInterval{10'000};
  using Clock = std::chrono::steady_clock;

  // began: the attach. The options must outlive it.
  AttachWait(const SessionOptions& options, Clock::time_point began);

  // Returns the first message that is not about waiting. kStopped: this rank is to stop. kTimeout: no progress for the
  // time-out; timed_out() is the error in words.
  Result<AttachReceived> reply(AttachSocket& socket);
  Error timed_out() const;

 private:
  Clock::time_point deadline() const;
  bool got_on() const;  // there was progress since the beginning
  std::string who() const;
  std::string how_long() const;  // "30 s of 120 s"
  void note();

  const SessionOptions& options_;
  StopQuestion stops_;
  const Clock::time_point began_;
  Patience patience_;
  Clock::time_point note_at_;
  std::string missing_;  // as in the worker's last report
};

}  // namespace tributary

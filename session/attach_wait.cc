#include "session/attach_wait.h"

#include <algorithm>
#include <variant>

namespace tributary {

Result<AttachReceived> AttachWait::reply(AttachSocket& socket) {
  while (true) {
    if (stops_.ask()) {
      return fail(ErrorCode::kStopped,
                  "told to stop while job '" + options_.job.name + "' waited for " + who() + ", " + how_long());
    }
    auto got = socket.receive(std::min({deadline_, note_at_, Clock::now() + StopQuestion::kInterval}));
    if (got && std::holds_alternative<AttachWaits>(got->message)) {
      missing_ = std::get<AttachWaits>(got->message).missing;
    } else if (got || got.error().code != ErrorCode::kTimeout || Clock::now() >= deadline_) {
      return got;
    }
    if (Clock::now() >= note_at_) note();
  }
}

Error AttachWait::timed_out() const {
  return {ErrorCode::kTimeout, "job '" + options_.job.name + "' did not come together within " +
                                   std::to_string(options_.attach_timeout.count()) + " ms; missing: " + who()};
}

std::string AttachWait::who() const {
  if (!missing_.empty()) return missing_;
  return "other ranks, nodes or servers of job '" + options_.job.name + "' (`tributary status`)";
}

std::string AttachWait::how_long() const {
  using std::chrono::duration_cast, std::chrono::seconds;
  const auto whole = duration_cast<seconds>(options_.attach_timeout);
  const auto gone = duration_cast<seconds>(options_.attach_timeout - (deadline_ - Clock::now()));
  return std::to_string(gone.count()) + " s of " + std::to_string(whole.count()) + " s";
}

void AttachWait::note() {
  note_at_ = Clock::now() + kNoteInterval;
  if (options_.note) options_.note("waiting for " + who() + ", " + how_long());
}

}  // namespace tributary

#include "session/attach_wait.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace tributary {
namespace {

std::uint64_t in_ms(AttachWait::Clock::time_point at) {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  return static_cast<std::uint64_t>(duration_cast<milliseconds>(at.time_since_epoch()).count());
}

}  // namespace

AttachWait::AttachWait(const SessionOptions& options, Clock::time_point began)
    : options_(options),
      stops_(options.stops),
      began_(began),
      patience_(static_cast<std::uint64_t>(options.attach_timeout.count()), in_ms(began)),
      note_at_(Clock::now() + kQuiet) {}

AttachWait::Clock::time_point AttachWait::deadline() const {
  return Clock::time_point(std::chrono::milliseconds(patience_.since_ms() + patience_.limit_ms()));
}

bool AttachWait::got_on() const {
  return patience_.since_ms() != in_ms(began_);
}

Result<AttachReceived> AttachWait::reply(AttachSocket& socket) {
  while (true) {
    if (stops_.ask()) {
      return fail(ErrorCode::kStopped,
                  "told to stop while job '" + options_.job.name + "' waited for " + who() + ", " + how_long());
    }
    auto got = socket.receive(std::min({deadline(), note_at_, Clock::now() + StopQuestion::kInterval}));
    if (got && std::holds_alternative<AttachWaits>(got->message)) {
      const AttachWaits& said = std::get<AttachWaits>(got->message);
      missing_ = said.missing;
      if (said.progress != 0) patience_.over(said.progress, in_ms(Clock::now()));  // takes note of it
    } else if (got || got.error().code != ErrorCode::kTimeout || Clock::now() >= deadline()) {
      return got;
    }
    if (Clock::now() >= note_at_) note();
  }
}

Error AttachWait::timed_out() const {
  const std::string limit = std::to_string(options_.attach_timeout.count()) + " ms";
  return {ErrorCode::kTimeout, "job '" + options_.job.name + "' did not come together within " +
                                   (got_on() ? limit + " after its last step forward" : limit) + "; missing: " + who()};
}

std::string AttachWait::who() const {
  if (!missing_.empty()) return missing_;
  return "other ranks, nodes or servers of job '" + options_.job.name + "' (`tributary status`)";
}

std::string AttachWait::how_long() const {
  using std::chrono::duration_cast, std::chrono::seconds;
  const auto in_words = [](Clock::duration time) {
    return std::to_string(duration_cast<seconds>(time).count()) + " s";
  };
  const std::string whole = in_words(options_.attach_timeout), gone = in_words(Clock::now() - began_);
  if (!got_on()) return gone + " of " + whole;
  return gone + "; " + in_words(options_.attach_timeout - (deadline() - Clock::now())) + " of " + whole +
         " since the last step";
}

void AttachWait::note() {
  note_at_ = Clock::now() + kNoteInterval;
  if (options_.note) options_.note("waiting for " + who() + ", " + how_long());
}

}  // namespace tributary

#include "session/figure_outbox.h"

#include <string>
#include <utility>

#include "session/session.h"

namespace tributary {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Status FigureOutbox::add(Round round, std::string_view name, double mean, std::uint64_t samples) {
  if (!Figure::sound_name(name)) {
    return fail(ErrorCode::kInvalidArgument, "a figure has a name of " + std::to_string(name.size()) +
                                                 " bytes; give it UTF-8 text of 1 to " +
                                                 std::to_string(kMaxFigureNameBytes) + " bytes");
  }
  const std::lock_guard lock(mutex_);
  if (unsaid_.values.size() >= kMaxFigures && !unsaid_.find(name)) {
    return fail(ErrorCode::kLimit, "figure '" + std::string(name) + "' is one too many: a job has at most " +
                                       std::to_string(kMaxFigures) + "; log fewer names");
  }
  unsaid_.add({round, {{std::string(name), mean, samples}}});
  return {};
}

bool FigureOutbox::due() const {
  return Clock::now() >= said_ + Session::kFigureInterval;
}

void FigureOutbox::send(AttachSocket& socket) {
  Figures now;
  {
    const std::lock_guard lock(mutex_);
    now = std::exchange(unsaid_, {});
  }
  if (now.empty() || unknown_) return;
  [[maybe_unused]] const Status sent = socket.send(RankFigures{std::move(now)});
  said_ = Clock::now();
}

}  // namespace tributary

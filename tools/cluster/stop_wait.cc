#include "tools/cluster/stop_wait.h"

#include "common/base/clock.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

// Between two questions.
constexpr milliseconds kLookAgain{1'000};
// An answer may stand behind what a daemon sends on a slow link: 10 s are 12 MB at 10 Mbit/s.
constexpr milliseconds kAnswerTimeout{10'000};

}  // namespace

StopWait::StopWait(milliseconds limit) : patience_(static_cast<std::uint64_t>(limit.count()), steady_ms()) {}

bool StopWait::ended(Process& process, const Ask& answers) {
  while (!process.wait(kLookAgain)) {
    if (answers(kAnswerTimeout)) ++answers_;
    if (patience_.over(answers_, steady_ms())) return !process.running();
  }
  return true;
}

}  // namespace tributary

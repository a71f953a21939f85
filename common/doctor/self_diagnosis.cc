#include "common/doctor/self_diagnosis.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/daemon/daemon_thread.h"

namespace tributary {

struct SelfDiagnosis::State {
  State(Look look_with, Tell tell_to) : look(std::move(look_with)), tell(std::move(tell_to)) {}

  const Look look;
  const Tell tell;
  std::atomic<bool> enough{false};  // the running diagnosis is to end
  std::mutex mutex;                 // guards what follows, and telling
  std::condition_variable changed;
  std::optional<Diagnose> next;
  std::uint32_t under_way = 0;  // the diagnosis's number; 0: none is
  bool stopped = false, ended = false;
  Diagnosed last;  // the thread's
};

SelfDiagnosis::SelfDiagnosis(Look look, Tell tell, const Logger& logger)
    : state_(std::make_shared<State>(std::move(look), std::move(tell))) {
  start_thread("diagnosis", logger, [state = state_] { run(state); }).detach();
}

SelfDiagnosis::~SelfDiagnosis() {
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  state_->enough.store(true, std::memory_order_release);
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kStopPatience, [this] { return state_->ended; });
}

void SelfDiagnosis::on(const Diagnose& order) {
  const std::lock_guard lock(state_->mutex);
  if (state_->under_way != 0 && (order.over || order.diagnosis != state_->under_way)) {
    state_->enough.store(true, std::memory_order_release);
  }
  if (order.over) {
    state_->next.reset();
  } else if (order.diagnosis != state_->under_way) {
    state_->next = order;
  }
  state_->changed.notify_all();
}

void SelfDiagnosis::run(const std::shared_ptr<State>& state) {
  for (;;) {
    std::unique_lock lock(state->mutex);
    state->changed.wait(lock, [&] { return state->next || state->stopped; });
    if (state->stopped) {
      state->ended = true;
      return state->changed.notify_all();
    }
    const Diagnose order = *std::exchange(state->next, std::nullopt);
    if (order.diagnosis != state->last.diagnosis) {
      state->under_way = order.diagnosis;
      state->enough.store(false, std::memory_order_release);
      lock.unlock();
      Diagnosed found;
      const Status looked = contained([&]() -> Status {
        found = state->look(order, state->enough);
        return {};
      });
      if (!looked) {
        found = {};
        found.checks.push_back({"daemon", "diagnosis", CheckLevel::kProblem, looked.error().message, "ask again"});
      }
      found.diagnosis = order.diagnosis;
      if (found.checks.size() > kMaxChecks) {
        const std::size_t more = found.checks.size() - kMaxChecks + 1;
        found.checks.resize(kMaxChecks - 1);
        found.checks.push_back({"daemon", "diagnosis", CheckLevel::kNote, std::to_string(more) + " lines are left out",
                                "`tributary doctor --config` on its machine has them"});
      }
      lock.lock();
      state->under_way = 0;
      if (state->enough.load(std::memory_order_acquire)) continue;  // its result is not wanted any more
      state->last = std::move(found);
    }
    if (!state->stopped) state->tell(state->last);
  }
}

}  // namespace tributary

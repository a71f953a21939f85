#include "train/stop_signal.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <thread>
#include <utility>

#include "common/base/assert.h"
#include "common/base/clock.h"

namespace tributary::train {

namespace {

constexpr std::chrono::milliseconds kSleepSlice{50};

// Globals, for the signal handler: the time of the first signal, 0 before. Any thread may run the handler.
std::atomic<std::uint64_t> g_asked_ms = 0;
std::atomic<int> g_signal = 0;  // the first one
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Only async-signal-safe calls.
extern "C" void tributary_note_signal(int number) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::uint64_t now_ms =
      static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
  std::uint64_t asked_ms = 0;
  if (g_asked_ms.compare_exchange_strong(asked_ms, now_ms)) {
    g_signal = number;
    return;
  }
  if (now_ms < asked_ms + kSameStopSignalMs) return;
  std::signal(number, SIG_DFL);
  std::raise(number);  // taken when the handler returns
}

}  // namespace

StopSignal::StopSignal() {
  g_asked_ms = 0;
  g_signal = 0;
}

StopSignal::~StopSignal() {
  suspend();
}

void StopSignal::arm() {
  if (armed_ || requested()) return;
  struct sigaction action {};
  action.sa_handler = tributary_note_signal;
  action.sa_flags = SA_RESTART;  // system calls continue: stopping is decided between rounds
  sigemptyset(&action.sa_mask);
  TRIB_ASSERT(sigaction(SIGINT, &action, &interrupt_before_) == 0);
  TRIB_ASSERT(sigaction(SIGTERM, &action, &terminate_before_) == 0);
  armed_ = true;
}

void StopSignal::suspend() {
  if (!armed_) return;
  TRIB_ASSERT(sigaction(SIGINT, &interrupt_before_, nullptr) == 0);
  TRIB_ASSERT(sigaction(SIGTERM, &terminate_before_, nullptr) == 0);
  armed_ = false;
}

bool StopSignal::requested() const {
  return g_asked_ms != 0;
}

bool StopSignal::unanswered() {
  return requested() && !std::exchange(answered_, true);
}

void StopSignal::sleep(std::chrono::milliseconds length) const {
  using std::chrono::steady_clock;
  for (const auto end = steady_clock::now() + length; steady_clock::now() < end && !requested();) {
    std::this_thread::sleep_for(std::min(length, kSleepSlice));
  }
}

std::string StopSignal::name() const {
  return !requested() ? "" : g_signal == SIGTERM ? "SIGTERM" : "SIGINT";
}

}  // namespace tributary::train

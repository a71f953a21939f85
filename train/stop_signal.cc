#include "train/stop_signal.h"

#include "common/assert.h"

namespace tributary::train {

namespace {

// The one thing that a signal handler can reach.
volatile std::sig_atomic_t g_signal = 0;

extern "C" void tributary_note_signal(int number) {
  g_signal = number;
  // The next one is not caught.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  g_signal = 0;
}

StopSignal::~StopSignal() {
  suspend();
}

void StopSignal::arm() {
  if (armed_ || requested()) return;
  struct sigaction action {};
  action.sa_handler = tributary_note_signal;
  action.sa_flags = SA_RESTART;  // system calls go on: stopping is decided between rounds
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
  return g_signal != 0;
}

}  // namespace tributary::train

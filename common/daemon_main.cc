#include "common/daemon_main.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/clock.h"
#include "common/zmq_util.h"

namespace tributary {
namespace {

constexpr long kIdleWaitMs = 60'000;
constexpr long kDrainPollMs = 20;

int report(const std::string& program, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), error.message.c_str());
  const bool usage = error.code == ErrorCode::kConfig || error.code == ErrorCode::kNotFound;
  return usage ? kExitUsage : kExitFailed;
}

// Waits for a signal of the set for at most `ms`; 0 if none came.
int wait_signal(const sigset_t& set, long ms) {
  const timespec timeout{ms / 1000, ms % 1000 * 1'000'000};
  const int signal = ::sigtimedwait(&set, nullptr, &timeout);
  return signal > 0 ? signal : 0;
}

// Before any thread starts, so that all inherit it: stop signals are taken by the main thread only.
sigset_t take_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return signals;
}

}  // namespace

int run_daemon(const std::string& program, const std::function<Result<Daemon>()>& start) {
  const sigset_t signals = take_stop_signals();
  tune_malloc_for_frames();
  const Result<Daemon> daemon = start();
  if (!daemon) return report(program, daemon.error());
  spdlog::logger& logger = *daemon->logger;
  std::printf("%s\n", daemon->ready_line().c_str());
  std::fflush(stdout);
  logger.info("serving: {}", daemon->ready_line());

  int signal = 0;
  while (signal == 0) signal = wait_signal(signals, kIdleWaitMs);
  const std::uint64_t asked = steady_ms();
  logger.info("stopping: {}; a second signal, a second or more later, stops at once", ::strsignal(signal));
  daemon->drain();
  const std::uint64_t deadline = asked + std::uint64_t{daemon->stop_timeout_s} * 1000;
  while (!daemon->drained()) {
    const int second = wait_signal(signals, kDrainPollMs);
    if (second != 0 && steady_ms() - asked >= kSameStopSignalMs) {
      logger.warn("stopped at once by a second signal: what was trained since the last snapshot is lost");
      std::_Exit(kExitSignal + second);
    }
    if (steady_ms() >= deadline) {
      const std::string why = daemon->jobs + " could not be stopped in good order within " +
                              std::to_string(daemon->stop_timeout_s) +
                              " s ([limits] stop_timeout_s); they resume from their last snapshot";
      logger.error(why);
      std::fprintf(stderr, "%s: %s\n", program.c_str(), why.c_str());
      if (daemon->abandon) daemon->abandon(why);
      return kExitFailed;
    }
  }
  logger.info("stopped in good order");
  return 0;
}

}  // namespace tributary

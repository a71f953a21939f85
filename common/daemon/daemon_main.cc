#include "common/daemon/daemon_main.h"

#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/base/clock.h"
#include "common/base/patience.h"
#include "common/daemon/crash_stacks.h"
#include "common/daemon/daemon_thread.h"
#include "common/daemon/supervisor.h"
#include "common/system/shared_memory.h"
#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr long kIdleWaitMs = 60'000;
constexpr long kBrokenPollMs = 500;
constexpr long kDrainPollMs = 20;
constexpr long kServingPollMs = 10;
constexpr std::uint64_t kQuietWaitMs = 1000;  // before the condition that is waited for is printed

int report(const std::string& program, const Error& error) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), error.message.c_str());
  const bool usage = error.code == ErrorCode::kConfig || error.code == ErrorCode::kNotFound;
  return usage ? kExitUsage : kExitFailed;
}

void say(Log& logger, const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  logger.info(line);
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

// Waits until the daemon serves. Returns a signal that came first, or 0. An error: it never will serve.
Result<int> wait_until_serving(const Daemon& daemon, const sigset_t& signals) {
  if (!daemon.serving) return 0;
  const std::uint64_t began = steady_ms();
  bool told = false;
  for (;;) {
    const Result<bool> serving = daemon.serving();
    if (!serving) return tl::unexpected(serving.error());
    if (*serving) return 0;
    if (!told && steady_ms() - began >= kQuietWaitMs) {
      say(*daemon.logger, "waiting for " + daemon.waits_for);
      tell_supervisor("STATUS=waiting for " + daemon.waits_for);
      told = true;
    }
    if (const int signal = wait_signal(signals, kServingPollMs); signal != 0) return signal;
  }
}

// Each trainer, link and connection takes some, and the usual soft limit is for programs that use select().
void raise_descriptor_limit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);  // as far as it may
}

// Seeds rand(), from which ZeroMQ counts up routing ids: a peer that knew the next one could take it first.
void seed_routing_ids() {
  unsigned seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) == sizeof seed) std::srand(seed);
}

// Makes stores, checkpoints, logs and sockets private to this user, whatever the umask of the shell.
void close_files_to_others() {
  ::umask(0077);
}

// Ends the process if its own end hangs, as calls to a device that no longer answers may. A supervisor waits for it.
void leave_within(std::uint32_t seconds, const Logger& logger) {
  start_thread("end", logger, [seconds, logger] {
    ::sleep(seconds);
    logger->error("the process ends without giving its devices and memory back: that has taken {} s", seconds);
    std::_Exit(kExitFailed);
  }).detach();
}

int give_up(const std::string& program, const Daemon& daemon, const std::string& why) {
  daemon.logger->error(why);
  std::fprintf(stderr, "%s: %s\n", program.c_str(), why.c_str());
  leave_within(daemon.stop_timeout_s, daemon.logger);
  if (daemon.abandon) daemon.abandon(why);
  return kExitFailed;
}

int serve(const std::string& program, const std::function<Result<Daemon>()>& start) {
  say_stacks_on_crash();
  const sigset_t signals = take_stop_signals();
  raise_descriptor_limit();
  close_files_to_others();
  tune_malloc_for_frames();
  seed_routing_ids();
  const Result<Daemon> daemon = start();
  if (!daemon) return report(program, daemon.error());
  Log& logger = *daemon->logger;
  if (!kernel_seals_writing()) {
    logger.warn(
        "this kernel, older than Linux 5.1, cannot seal memory against writing: a process of this user that is "
        "to read this daemon's memory could write to it");
  }
  const Result<int> interrupted = wait_until_serving(*daemon, signals);
  if (!interrupted) {
    logger.error("cannot serve: {}", interrupted.error().message);
    return report(program, interrupted.error());
  }
  int signal = *interrupted;
  if (signal == 0) {
    std::printf("%s\n", daemon->ready_line().c_str());
    std::fflush(stdout);
    logger.info("serving: {}", daemon->ready_line());
    tell_supervisor("READY=1\nSTATUS=serving");
  }
  while (signal == 0) {
    signal = wait_signal(signals, daemon->broken ? kBrokenPollMs : kIdleWaitMs);
    const std::string why = signal == 0 && daemon->broken ? daemon->broken() : std::string();
    if (!why.empty()) return give_up(program, *daemon, why);
  }
  const std::uint64_t asked = steady_ms();
  logger.info("stopping: {}; a second signal, a second or more later, stops at once", ::strsignal(signal));
  tell_supervisor("STOPPING=1\nSTATUS=stopping " + daemon->jobs);
  daemon->drain();
  Patience patience(daemon->stop_timeout_s * 1000ull, asked);
  while (!daemon->drained()) {
    const int second = wait_signal(signals, kDrainPollMs);
    if (second != 0 && steady_ms() - asked >= kSameStopSignalMs) {
      logger.warn("stopped at once by a second signal: what was trained since the last snapshot is lost");
      std::_Exit(kExitSignal + second);
    }
    if (patience.over(daemon->progress ? daemon->progress() : 0, steady_ms())) {
      const std::string why = daemon->jobs + " could not be stopped cleanly: nothing has moved for " +
                              std::to_string(daemon->stop_timeout_s) +
                              " s ([limits] stop_timeout_s); they resume from their last snapshot";
      return give_up(program, *daemon, why);
    }
  }
  if (const std::string lost = daemon->not_saved ? daemon->not_saved() : std::string(); !lost.empty()) {
    logger.error("stopped, but not saved: {}", lost);
    std::fprintf(stderr, "%s: not saved: %s\n", program.c_str(), lost.c_str());
    return kExitFailed;
  }
  logger.info("stopped cleanly");
  return 0;
}

}  // namespace

int run_daemon(const std::string& program, const std::function<Result<Daemon>()>& start) {
  int code = kExitFailed;
  const Status served = contained([&]() -> Status {
    code = serve(program, start);
    return {};
  });
  return served ? code : report(program, {ErrorCode::kInternal, served.error().message});
}

int report_check(const std::string& config_path, const Status& checked) {
  if (checked) std::printf("%s is sound\n", config_path.c_str());
  if (!checked) std::fprintf(stderr, "%s\n", checked.error().message.c_str());
  return checked ? 0 : kExitUsage;
}

}  // namespace tributary

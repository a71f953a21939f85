// tributary-worker: one per node. Trainers attach to it; it reduces their gradients and talks to the servers.
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/config_toml.h"
#include "common/log.h"
#include "common/zmq_util.h"
#include "worker/worker.h"
#include "worker/zmq_io.h"

namespace {

// Exit codes, beside 0: what a supervisor may retry, and what it may not.
constexpr int kExitFailed = 1;  // a socket or port taken, a stop that took too long
constexpr int kExitUsage = 2;   // command line or configuration
constexpr int kExitSignal = 128;

int report(const tributary::Error& error) {
  std::fprintf(stderr, "tributary-worker: %s\n", error.message.c_str());
  const bool usage = error.code == tributary::ErrorCode::kConfig || error.code == tributary::ErrorCode::kNotFound;
  return usage ? kExitUsage : kExitFailed;
}

// Waits for a signal of the set for at most `ms`; 0 if none came.
int wait_signal(const sigset_t& set, long ms) {
  const timespec timeout{ms / 1000, ms % 1000 * 1'000'000};
  const int signal = ::sigtimedwait(&set, nullptr, &timeout);
  return signal > 0 ? signal : 0;
}

int serve(const std::string& config_path, const sigset_t& signals) {
  const auto config = tributary::load_worker_config(config_path);
  if (!config) return report(config.error());
  const auto logger = tributary::make_logger(config->log, "worker");
  if (!logger) return report(logger.error());
  auto started = tributary::Worker::start(*config, *logger);
  if (!started) {
    (*logger)->error("cannot start: {}", started.error().message);
    return report(started.error());
  }
  tributary::Worker& worker = **started;
  std::printf("%s\n", worker.ready_line().c_str());
  std::fflush(stdout);
  (*logger)->info("serving: {}", worker.ready_line());

  constexpr long kIdleWaitMs = 60'000;
  int signal = 0;
  while (signal == 0) signal = wait_signal(signals, kIdleWaitMs);
  (*logger)->info("stopping: {}; a second signal stops at once", ::strsignal(signal));
  worker.drain();
  const std::uint64_t deadline = tributary::worker_io::now_ms() + std::uint64_t{config->stop_timeout_s} * 1000;
  constexpr long kDrainPollMs = 20;
  while (!worker.drained()) {
    if (const int second = wait_signal(signals, kDrainPollMs); second != 0) {
      (*logger)->warn("stopped at once by a second signal: what was trained since the last snapshot is lost");
      std::_Exit(kExitSignal + second);
    }
    if (tributary::worker_io::now_ms() >= deadline) {
      const std::string why = "this node's jobs could not be stopped in good order within " +
                              std::to_string(config->stop_timeout_s) +
                              " s ([limits] stop_timeout_s); they resume from their last snapshot";
      (*logger)->error(why);
      std::fprintf(stderr, "tributary-worker: %s\n", why.c_str());
      worker.abandon(why);
      return kExitFailed;
    }
  }
  (*logger)->info("stopped in good order");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Serves the trainers of one node: they attach over a Unix socket and share their gradients through memory; this "
      "daemon\n"
      "adds them up, exchanges them with the servers and hands the new parameters back.\n\n"
      "Prints one line \"ready {...}\" when it serves. SIGTERM or SIGINT lets the trainers finish their round, tells "
      "the\n"
      "coordinator and exits with 0; a second signal exits at once.",
      "tributary-worker"};
  std::string config_path;
  app.add_option("--config", config_path, "worker.toml: coordinator, socket, limits, log (see configs/worker.toml)")
      ->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kExitUsage;
  }

  // Before any thread starts, so that all inherit it: stop signals are taken by the main thread only.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  tributary::tune_malloc_for_frames();
  return serve(config_path, signals);
}

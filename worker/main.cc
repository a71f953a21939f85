// tributary-worker: one per node. Trainers attach to it; it reduces their gradients and talks to the servers.
#include <memory>
#include <string>
#include <utility>

#include "common/base/command_line.h"
#include "common/base/version.h"
#include "common/config/config_toml.h"
#include "common/daemon/daemon_main.h"
#include "common/daemon/log.h"
#include "common/devices/cuda_devices.h"
#include "common/security/credentials.h"
#include "worker/worker.h"

namespace {

tributary::Result<tributary::Daemon> start(const std::string& config_path) {
  const auto config = tributary::load_worker_config(config_path);
  if (!config) return tl::unexpected(config.error());
  const auto logger = tributary::make_logger(config->log, "worker");
  if (!logger) return tl::unexpected(logger.error());
  auto started = tributary::Worker::start(*config, *logger);
  if (!started) {
    (*logger)->error("cannot start: {}", started.error().message);
    return tl::unexpected(started.error());
  }
  const std::shared_ptr<tributary::Worker> worker = std::move(*started);
  tributary::Daemon daemon;
  daemon.logger = *logger;
  daemon.stop_timeout_s = config->stop_timeout_s;
  daemon.jobs = "this node's jobs";
  daemon.ready_line = [worker] { return worker->ready_line(); };
  daemon.waits_for = worker->waits_for();
  daemon.serving = [worker] { return worker->serving(); };
  daemon.broken = [worker] { return worker->broken(); };
  daemon.drain = [worker] { worker->drain(); };
  daemon.drained = [worker] { return worker->drained(); };
  daemon.progress = [worker] { return worker->progress(); };
  daemon.abandon = [worker](const std::string& why) { worker->abandon(why); };
  return daemon;
}

}  // namespace

int main(int argc, char** argv) {
  tributary::CommandLine app{
      "Serves the trainers of one node: they attach over a Unix socket and share their gradients through memory; this "
      "daemon\n"
      "adds them up, exchanges them with the servers and hands the new parameters back.\n\n"
      "Prints one line \"ready {...}\" when it serves: the coordinator knows it then. SIGTERM or SIGINT lets the "
      "trainers finish their round, tells "
      "the\n"
      "coordinator and exits with 0; a second signal, a second or more later, exits at once.",
      "tributary-worker", 8};
  app.version(std::string("tributary-worker ") + tributary::kVersion);
  std::string config_path;
  app.add_option("--config", config_path, "worker.toml: coordinator, socket, limits, log (see configs/worker.toml)")
      ->required()
      ->type_name("FILE");
  bool check = false;
  app.add_flag("--check-config", check, "read the file and what it names, say whether a daemon would take it, and end");
  if (const auto status = app.parse(argc, argv)) return *status;
  if (check)
    return tributary::report_check(config_path, tributary::check_start(tributary::load_worker_config(config_path)));
  tributary::load_kernels_at_start();
  return tributary::run_daemon("tributary-worker", [&] { return start(config_path); });
}

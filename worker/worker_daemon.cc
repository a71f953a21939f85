#include "worker/worker_daemon.h"

#include <memory>
#include <utility>

#include "common/config/config_toml.h"
#include "common/daemon/log.h"
#include "worker/worker.h"

namespace tributary {

Result<Daemon> start_worker(const std::string& config_path) {
  const auto config = load_worker_config(config_path);
  if (!config) return tl::unexpected(config.error());
  const auto logger = make_logger(config->log, "worker");
  if (!logger) return tl::unexpected(logger.error());
  auto started = Worker::start(*config, *logger);
  if (!started) {
    (*logger)->error("cannot start: {}", started.error().message);
    return tl::unexpected(started.error());
  }
  const std::shared_ptr<Worker> worker = std::move(*started);
  Daemon daemon;
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

}  // namespace tributary

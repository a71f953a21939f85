#include "server/server_daemon.h"

#include <memory>
#include <utility>

#include "common/config/config_toml.h"
#include "common/daemon/log.h"
#include "server/server.h"

namespace tributary {

Result<Daemon> start_server(const std::string& config_path) {
  const auto config = load_server_config(config_path);
  if (!config) return tl::unexpected(config.error());
  const auto logger = make_logger(config->log, "server-" + std::to_string(config->index));
  if (!logger) return tl::unexpected(logger.error());
  auto started = Server::start(*config, *logger);
  if (!started) {
    if (!config->log.file.empty()) (*logger)->error("cannot start: {}", started.error().message);
    return tl::unexpected(started.error());
  }
  const std::shared_ptr<Server> server = std::move(*started);
  Daemon daemon;
  daemon.logger = *logger;
  daemon.stop_timeout_s = config->stop_timeout_s;
  daemon.jobs = "jobs";
  daemon.ready_line = [server] { return server->ready_line(); };
  daemon.waits_for = server->waits_for();
  daemon.serving = [server] { return server->serving(); };
  daemon.drain = [server] { server->drain(); };
  daemon.drained = [server] { return server->drained(); };
  daemon.progress = [server] { return server->progress(); };
  daemon.not_saved = [server] { return server->not_saved(); };
  return daemon;
}

}  // namespace tributary

// Server: puts the parts of a tributary-server together, in the order they depend on each other,
// and takes them apart again.
//
//   store -> lanes -> coordinator (server 0) -> snapshotter -> control -> admin HTTP
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/config.h"
#include "common/daemon/admin_http.h"
#include "common/daemon/log.h"
#include "common/daemon/metrics.h"
#include "server/control.h"
#include "server/coordinator/coordinator.h"
#include "server/copies/copy_fetcher.h"
#include "server/copies/copy_port.h"
#include "server/lane/lane.h"
#include "server/store/checkpoint_service.h"
#include "server/store/snapshotter.h"
#include "server/store/store.h"

namespace tributary {

class Server {
 public:
  // After everything of this process has stopped, ZeroMQ's remaining replies get this long to leave (server 0's permits
  // for the others to end).
  static constexpr std::uint64_t kDrainGraceMs = 300;
  // A server whose place in the list of coordinators is another machine's ends when it finds none for so many timeouts.
  static constexpr std::uint64_t kAsideTimeouts = 4;

  // Errors as the parts word them: an address that is taken, a store that belongs to another server, ...
  static Result<std::unique_ptr<Server>> start(ServerConfig config, Logger logger);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns one line for the starter of the process: ready {"admin":...,"pid":...,"lanes":[...],"coordinator":...}
  std::string ready_line() const;
  // Serving begins when the coordinator knows this server. kConfig: it refuses it for good.
  std::string waits_for() const;
  Result<bool> serving() const;

  // Stops this server's jobs cleanly (on server 0: every job), final snapshots included; drained() is true when that is
  // done.
  void drain();
  bool drained();
  std::uint64_t progress() const;  // of a stop, as Daemon has it
  std::string not_saved() const;   // likewise

  const ServerConfig& config() const { return config_; }

 private:
  Server(ServerConfig config, Logger logger);
  Status start_parts();
  Status start_coordinator(const Credentials& credentials);
  Status start_copies(const Credentials& credentials, std::uint16_t lanes);

  ServerConfig config_;
  Logger logger_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Control> control_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Snapshotter> snapshotter_;
  std::unique_ptr<StoreThread> store_thread_, record_thread_;
  std::unique_ptr<CheckpointService> checkpoints_;
  std::unique_ptr<CopyPort> copy_port_;
  std::unique_ptr<CopyFetcher> copy_fetcher_;
  Metrics metrics_;
  std::unique_ptr<AdminHttp> admin_;
  const std::uint64_t started_ms_;
  std::uint64_t drained_ms_ = 0;  // when the last part was done; 0: not yet
};

}  // namespace tributary

// A server's /status (JSON, for people and `tributary status`) and /metrics (Prometheus).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/daemon/metrics.h"
#include "server/control.h"
#include "server/coordinator/coordinator.h"
#include "server/copies/copy_fetcher.h"
#include "server/lane/lane_gauges.h"
#include "server/store/snapshotter.h"

namespace tributary {

// The parts that are asked. Everything pointed to must outlive the AdminHttp that calls these functions.
struct ServerParts {
  const ServerConfig* config = nullptr;
  std::uint64_t started_ms = 0;  // steady_ms()
  std::vector<const Lane*> lanes;
  const Control* control = nullptr;
  const Coordinator* coordinator = nullptr;  // on server 0
  const Snapshotter* snapshotter = nullptr;  // null without a store
  const CopyFetcher* fetcher = nullptr;      // null without a store, or without a port for copies
};

// Job ids and incarnations are strings of digits: they have 64 bits, and not every JSON reader has.
std::string status_json(const ServerParts& parts);

void register_metrics(Metrics& metrics, const ServerParts& parts);

}  // namespace tributary

// A worker's /status (JSON, for people and `tributary status`) and /metrics (Prometheus).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/daemon/metrics.h"
#include "server/coordinator/coordinator.h"
#include "worker/attach_server.h"
#include "worker/control.h"
#include "worker/node/lane.h"
#include "worker/node/node_devices.h"

namespace tributary {

// The parts that are asked. Everything pointed to must outlive the AdminHttp that calls these functions.
struct WorkerParts {
  const WorkerConfig* config = nullptr;
  std::uint64_t started_ms = 0;  // monotonic
  std::uint64_t max_memory = 0;
  const AttachServer* attach = nullptr;
  const WorkerControl* control = nullptr;
  const Coordinator* coordinator = nullptr;  // if this worker serves it
  const NodeDevices* devices = nullptr;
  double link_bytes_per_s = 0.0;  // that its driver states; 0: none
  std::vector<const WorkerLane*> lanes;
};

// Sums over the lanes of a job.
JobTotals totals_of(const NodeJob& job);

// Job ids are strings of digits: they have 64 bits, and not every JSON reader has.
std::string status_json(const WorkerParts& parts);

void register_metrics(Metrics& metrics, const WorkerParts& parts);

}  // namespace tributary

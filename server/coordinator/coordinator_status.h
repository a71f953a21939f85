// What the coordinator adds to the /status and /metrics of the daemon that has it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "common/daemon/metrics.h"
#include "server/coordinator/coordinator.h"

namespace tributary {

// Its jobs and peers. Ids are strings of digits: they have 64 bits, and not every JSON reader has.
nlohmann::ordered_json coordinator_json(const Coordinator& coordinator);

// The coordinator must outlive the metrics.
void register_metrics(Metrics& metrics, const Coordinator& coordinator);

}  // namespace tributary

// The coordinator's part of its daemon's /status and /metrics.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "common/daemon/metrics.h"
#include "server/coordinator/coordinator.h"

namespace tributary {

// Its jobs, peers and events. Ids are strings of digits: they have 64 bits, and not every JSON reader has.
nlohmann::ordered_json coordinator_json(const Coordinator& coordinator);
// The same for each; now_ms: of the clock that measures peers' silence.
nlohmann::ordered_json jobs_json(const std::vector<JobStatus>& jobs);
nlohmann::ordered_json peers_json(const std::vector<CoordinatorCore::PeerStatus>& peers, std::uint64_t now_ms);
nlohmann::ordered_json events_json(const std::vector<EventList::Event>& events);

// The coordinator must outlive the metrics.
void register_metrics(Metrics& metrics, const Coordinator& coordinator);

}  // namespace tributary

// A job's placement for /status: shares, bytes and chunks by server and, if links are known, their loads.
// Factors are of M/B (server/coordinator/cluster/job_placement.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/coordinator/cluster/job_placement.h"

namespace tributary {

nlohmann::ordered_json placement_json(const JobPlacement& placement);

}  // namespace tributary

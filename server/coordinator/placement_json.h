// A job's placement as /status tells it: shares, bytes and chunks by server; with known links also what they carry.
// Factors are of M/B (server/coordinator/job_placement.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/coordinator/job_placement.h"

namespace tributary {

nlohmann::ordered_json placement_json(const JobPlacement& placement);

}  // namespace tributary

// The check that a job's memory fits on a server, next to that of the others (server/memory_formula.h).
#pragma once

#include <map>

#include "common/base/result.h"
#include "common/config/config.h"
#include "server/kept_views.h"
#include "server/server_job.h"

namespace tributary {

// Refuses a job that does not fit next to those that are open, or kept for a next view, before it takes any memory: the
// others continue. snapshots: there is a store for them.
Status check_memory(const ServerJobStatus& job, const std::map<JobId, ServerJob>& open, const KeptViews& kept,
                    const ServerConfig& config, bool snapshots);

}  // namespace tributary

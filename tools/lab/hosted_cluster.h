// The daemons of a lab's hosts, each in its host's namespace, and the folder that a run writes to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/config.h"
#include "tools/cluster/local_cluster.h"
#include "tools/lab/hosted_ranks.h"
#include "tools/lab/lab.h"
#include "tools/lab/lab_run.h"

namespace tributary::lab {

std::string bin_dir_of(const RunOptions& run);
Status make_folder(const std::string& path);
// Makes a new, empty folder for gates and the like, next to LocalCluster's files in the base folder.
Result<std::string> fresh_folder(const RunOptions& run, const std::string& name);

// Starts servers and workers. store: servers keep snapshots. kInvalidArgument if servers are wanted and the lab has
// none.
Result<std::unique_ptr<LocalCluster>> start_cluster(const Lab& lab, const RunOptions& run, ServerHosts servers,
                                                    bool store);
// As the lab file places them; of an all-reduce job only the workers.
ServerHosts servers_for(const JobConfig& job);

// Daemons and trainers, for read_now().
std::vector<Watched> watched(LocalCluster& cluster);

// kStopped if the user asked to stop, kUnavailable if a process ended that should not have.
Status healthy(LocalCluster& cluster, const RunOptions& run);
Status not_interrupted(const RunOptions& run);

}  // namespace tributary::lab

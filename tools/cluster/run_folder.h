// The folder of a run, and how our files in it are known. Clusters on one machine write their configurations, stores
// and logs into a folder that the user names, and remove them for a fresh start; they never overwrite or remove other
// files there. A marker file says that a folder is a run's; without one, no file in it may have a name that we would
// use.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

inline constexpr char kRunMarker[] = ".tributary-run";
inline constexpr char kAdminTokenFile[] = "admin.token";  // of its server 0
inline constexpr char kKeysFolder[] = "keys";             // of a cluster with keys

// Makes an existing folder a run's. kInvalidArgument, naming a file in it, if the folder is used otherwise. Runs of
// releases that wrote no marker are known by their configuration files.
Status claim_run_folder(const std::string& folder);
// Removes a run's files from its folder, by exact names; the lock and the marker stay.
Status remove_run(const std::string& folder);

// An empty folder for scratch files, in place of the one that an earlier call made. kInvalidArgument if another is
// there.
Status renew_scratch_folder(const std::string& path);

}  // namespace tributary

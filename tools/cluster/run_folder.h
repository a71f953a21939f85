// The folder of a run: what is ours in it, and how that is known. Clusters on one machine write their configurations,
// stores and logs into a folder that people name, and remove them for a fresh start; nothing of anybody else is written
// over or removed there. A marker file says that a folder is a run's; without one, nothing in it may have a name that
// we would use.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

inline constexpr char kRunMarker[] = ".tributary-run";
inline constexpr char kAdminTokenFile[] = "admin.token";  // of its server 0
inline constexpr char kKeysFolder[] = "keys";             // of a cluster with keys

// Makes an existing folder a run's. kInvalidArgument, naming what is there, if it is somebody else's. Runs of releases
// that wrote no marker are known by their configuration files.
Status claim_run_folder(const std::string& folder);
// Removes what a run wrote into its folder, by exact names; the lock and the marker stay.
Status remove_run(const std::string& folder);

// An empty folder for scratch files, in place of the one that an earlier call made. kInvalidArgument if another is
// there.
Status renew_scratch_folder(const std::string& path);

}  // namespace tributary

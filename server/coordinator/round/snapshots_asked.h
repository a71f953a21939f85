// Whether a job's configuration asks for its state to be kept.
#pragma once

#include "common/config/config.h"

namespace tributary {

// Returns whether the configuration asks for snapshots. The default interval, or none at all, is no request: on servers
// without a store such a job trains to its end, and no requested snapshot is missing.
inline bool asks_for_snapshots(const SnapshotConfig& config) {
  const SnapshotConfig unsaid;
  return config.every_rounds != 0 || (config.every_s != 0 && config.every_s != unsaid.every_s);
}

// Returns whether the configuration declines snapshots: then a stop loses no requested state, either.
inline bool declines_snapshots(const SnapshotConfig& config) {
  return config.every_rounds == 0 && config.every_s == 0;
}

}  // namespace tributary

// Whether somebody asked for a job's state to be kept.
#pragma once

#include "common/config/config.h"

namespace tributary {

// By its configuration. The interval that a job has when it says nothing, and none at all, are no wish: on servers
// without a store such a job trains to its end, and nobody misses what is not kept.
inline bool asks_for_snapshots(const SnapshotConfig& config) {
  const SnapshotConfig unsaid;
  return config.every_rounds != 0 || (config.every_s != 0 && config.every_s != unsaid.every_s);
}

// Somebody said that nothing is to be kept: then a stop loses nothing that was wanted, either.
inline bool declines_snapshots(const SnapshotConfig& config) {
  return config.every_rounds == 0 && config.every_s == 0;
}

}  // namespace tributary

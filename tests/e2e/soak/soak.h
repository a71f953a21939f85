// Checks that long-lived daemons do not grow; the program `soak` does so for longer. Real daemons, and a trainer of a
// tiny model in this process, make thousands of snapshots, views, jobs, attaches and connections, as fast as possible.
// Meanwhile every daemon's memory, descriptors and threads and the servers' stores are sampled.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/result.h"

namespace tributary::e2e {

struct SoakOptions {
  // Numbers of units; 0: none.
  std::uint64_t snapshots = 10'000, views = 1'000, jobs = 200, attaches = 1'000, connections = 1'000;
  std::uint16_t servers = 2;
  std::string base_dir;  // for the daemons' stores, sockets and logs; empty: a folder in /tmp that goes again
  std::string bin_dir;   // as ClusterOptions::bin_dir
  std::function<void(const nlohmann::ordered_json&)> tell = [](const nlohmann::ordered_json&) {};  // each row
};

// {flat, rows: [{phase, units, seconds, daemon, flat, anonymous_bytes, descriptors, threads, store_bytes: {first, last,
//  per_unit, grew, allowed}}]}: one row a phase and daemon. The first third of a phase warms up. per_unit: the slope of
// what was seen after it, as the median of the slopes between all pairs of samples; grew: that slope times the units.
// Flat: nothing grew by more than is allowed. Call it on the main thread: it starts daemons.
Result<nlohmann::ordered_json> run_soak(const SoakOptions& options);

}  // namespace tributary::e2e

// `tributary chaos`: trains on a local cluster, kills daemons at random moments, starts them again, and compares the
// parameters with those of a calm run of as many rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::cli {

struct ChaosOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  ClusterOptions cluster;               // base_dir: two clusters are made in it, chaos/ and calm/
  std::uint32_t kills = 50;             // processes
  std::uint64_t seed = 1;               // for victims and times
  double calm_seconds = 1.0;            // mean time between a recovery and the next kill
  double several = 0.4;                 // share of strikes that kill more than one at once
  std::uint32_t lose_disks = 0;         // strikes, spread among all, that kill one server and delete its store
  std::uint32_t lose_coordinators = 0;  // strikes, among those, that lose the server with the coordinator for good
  std::function<bool()> interrupted;
  std::function<void(const std::string&)> tell;  // prints a line
};

// {job, seed, kills, lost_disks, lost_coordinators, strikes [{at_round (the newest complete one), killed[], lost_disk,
// lost_coordinator, restarted_s (from the kill until all processes were ready again), recovered_s (from then until a rank that had attached again held a round
// completed since, and had computed the next gradient from it), recomputed (reported complete rounds from before the
// strike that are after the new view's beginning)}], recovered_s {median, max}, rounds, digest, calm_digest, same}.
// kTimeout: the calm run stood still. kUnavailable: training did not continue, or a daemon could not be started again.
Result<nlohmann::ordered_json> run_chaos(const ChaosOptions& options);

}  // namespace tributary::cli

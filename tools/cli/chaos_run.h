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
  ClusterOptions cluster;     // base_dir: two clusters are made in it, chaos/ and calm/
  std::uint32_t kills = 50;   // processes
  std::uint64_t seed = 1;     // of who and when
  double calm_seconds = 1.0;  // mean time between a recovery and the next kill
  double several = 0.4;       // how often more than one is killed at once
  std::function<bool()> interrupted;
  std::function<void(const std::string&)> tell;  // a line at a time
};

// {job, seed, kills, strikes [{at_round (the newest complete one), killed[], restarted_s (from the kill until all
// processes were ready again), recovered_s (from then until a rank that had attached anew held a round completed since,
// and had computed the next gradient from it), recomputed (rounds that were complete before the strike, as far as ranks
// had told, and are after where the new view began)}], recovered_s {median, max}, rounds, digest, calm_digest, same}.
// kTimeout: the calm run stood still. kUnavailable: training did not go on, or a daemon could not be started again.
Result<nlohmann::ordered_json> run_chaos(const ChaosOptions& options);

}  // namespace tributary::cli

// `tributary bench elastic`: a job whose nodes come and go while it trains. Real daemons and built-in trainers on this
// machine; nodes join by starting their trainers, and leave by SIGTERM to their worker, as spot machines end.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/local_cluster.h"
#include "common/result.h"

namespace tributary::bench {

struct ElasticOptions {
  std::string job_file;
  std::vector<std::string> overrides;         // as --set takes them
  std::vector<std::uint32_t> nodes{2, 4, 3};  // of each phase; phases have equally many rounds
  std::uint16_t servers = 2;
  std::uint32_t ranks_per_node = 1;
  Transport transport = Transport::kShm;
  std::string base_dir;
  std::string bin_dir;  // as ClusterOptions::bin_dir
  std::string device = "cpu";
  // Every sample takes so long more, asleep (train/slow_motion.h): nodes do not slow down each other on few processors.
  double us_per_sample = 0.0;
  bool fixed = true;  // also a run with the first phase's nodes from beginning to end
  std::function<bool()> interrupted = [] { return false; };
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

// {phases: [{nodes, world_size, rounds, seconds, samples_per_s, first_round_after_s}], rounds, test_accuracy,
//  coverage: {rounds_whole, rounds_wrong, rounds_seen, rounds_dealt_twice} (bench/elastic_coverage.h),
//  fixed: {nodes, test_accuracy, samples_per_s} or null}
// first_round_after_s: from the order to join or leave until a rank of the view with the new nodes holds the first
// round that this view completed, and has computed the next gradient from it.
// kInvalidArgument: fewer than one phase or node. kUnavailable: a process ended that should not have.
Result<nlohmann::ordered_json> run_elastic(const ElasticOptions& options);

}  // namespace tributary::bench

// `tributary bench stragglers`: what a slow node costs, mode by mode. Real servers, workers and trainers on this
// machine train the same model on Fashion-MNIST for the same time, one node slowed down.
//
// Computing is mostly sleeping: every sample takes so many microseconds more than its arithmetic (train/slow_motion.h),
// several times as many on the slow node. So nodes have processors of their own, as it were, on a machine with fewer;
// and a slow node does not leave its processor to the others.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/result.h"

namespace tributary::bench {

// What happens to the last node. Its steps take `factor` times as long: all of them, or some, drawn at random.
struct Slowdown {
  std::string name;
  double factor = 1.0, chance = 1.0;
  // How many times as long its steps take on average.
  double mean() const { return 1.0 + (factor - 1.0) * chance; }
};
// none, constant (3 times), random (5 times in 10 % of the steps).
const std::vector<Slowdown>& slowdowns();
// sync, weighted, ssp-1, ssp-4, ssp-16, async, diloco.
const std::vector<std::string>& straggler_variants();

struct StragglerOptions {
  std::vector<std::string> slowdowns = {"constant", "random"};
  std::vector<std::string> variants;  // empty: all
  std::uint32_t nodes = 4;
  std::uint32_t batch = 64;  // samples a step and node
  std::uint32_t micro_batches = 16;
  double us_per_sample = 1500.0;
  double seconds = 20.0;  // of each run
  std::uint64_t seed = 1;
  std::string base_dir;  // for the runs' files; empty: a folder in /tmp that is removed
  std::function<void(const std::string&)> tell;
  std::function<bool()> interrupted;
  // What there is after each run, so that whoever is interrupted keeps it. An error ends the measurement.
  std::function<Status(const nlohmann::ordered_json& so_far)> keep;
};

// What throughput could be if nobody ever waited for the slow node, and it did what it manages: n - 1 + 1 / f nodes.
double ideal_nodes(std::uint32_t nodes, const Slowdown& slowdown);

// earlier: what an earlier call gave, or null. Its runs stay, but for those that are done again; so does the calm run
// that everything is compared with. It must have been made with the same options.
//
// {options: {nodes, batch, micro_batches, us_per_sample, seconds, seed, deadline_ms}, runs: [{slowdown, variant,
// seconds,
//  samples (of all nodes), samples_per_s, ideal_per_s, ratio (of these), rounds (of node 0), left, test_accuracy (mean
//  of the curve's last five), curve: [{seconds (since training began), samples, round, test_accuracy}]}]}
// kMalformed: `earlier` lacks something.
Result<nlohmann::ordered_json> run_stragglers(const StragglerOptions& options, const nlohmann::ordered_json& earlier);

}  // namespace tributary::bench

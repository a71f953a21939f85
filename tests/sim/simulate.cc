// simulate: the round logic under a bad network, and whole clusters whose processes die, seed by seed; how a failing
// seed of the tests is replayed.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/sim/cluster_simulation.h"
#include "tests/sim/simulation.h"

namespace tributary {
namespace {

struct SimOptions {
  std::string world = "both";
  std::uint64_t seeds = 100;
  std::uint64_t from = 1;
  bool verbose = false, trace = false;
};

unsigned long long number(std::uint64_t value) {
  return value;
}

void say(std::uint64_t seed, const char* world, const std::string& failure, const std::string& scenario) {
  std::printf("%s seed %llu: %s\n  %s\n", world, number(seed), failure.empty() ? "ok" : failure.c_str(),
              scenario.c_str());
}

bool run_data(std::uint64_t seed, const SimOptions& options) {
  const sim::Outcome outcome = sim::run(seed);
  if (outcome.ok && !options.verbose) return true;
  say(seed, "data", outcome.failure, outcome.scenario.describe());
  std::printf("  %llu events, %llu messages, %llu sent again, %llu snapshots, %.3f s of virtual time\n",
              number(outcome.events), number(outcome.messages), number(outcome.resends), number(outcome.snapshots),
              static_cast<double>(outcome.virtual_ns) * 1e-9);
  return outcome.ok;
}

bool run_cluster(std::uint64_t seed, const SimOptions& options) {
  const sim::ClusterOutcome outcome = sim::run_cluster(seed, sim::Mutation::kNone, options.trace);
  if (outcome.ok && !options.verbose) return true;
  say(seed, "cluster", outcome.failure, outcome.scenario.describe());
  std::printf(
      "  %llu events, %llu packets, %llu kills, %llu views (%llu shards went on with what they had, %llu began anew or "
      "loaded; %llu views with pushes that nodes had kept), %llu snapshots, %llu pushes "
      "sent again, %.3f s of virtual "
      "time, %.3f s from the last fault to the next round\n",
      number(outcome.events), number(outcome.packets), number(outcome.kills), number(outcome.views),
      number(outcome.kept), number(outcome.restored), number(outcome.redone), number(outcome.commits),
      number(outcome.resends), static_cast<double>(outcome.virtual_ns) * 1e-9,
      static_cast<double>(outcome.longest_pause_ns) * 1e-9);
  return outcome.ok;
}

bool run_world(const char* world, bool (*run)(std::uint64_t, const SimOptions&), const SimOptions& options) {
  const auto begun = std::chrono::steady_clock::now();
  std::uint64_t failed = 0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) failed += run(options.from + i, options) ? 0 : 1;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%s: %llu of %llu seeds passed in %.1f s\n", world, number(options.seeds - failed), number(options.seeds),
              took.count());
  return failed == 0;
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  using namespace tributary;
  SimOptions options;
  CLI::App app("Runs the round logic and whole clusters under faults, seed by seed.");
  app.footer(
      "\nTwo worlds: \"data\" is the round logic on a network that delays, reorders, repeats and loses messages; "
      "\"cluster\" is whole clusters whose processes, machines, connections and disks fail. A seed decides everything. "
      "Replay one with\n"
      "  simulate --world cluster --seeds 1 --from SEED --trace");
  app.add_option("--world", options.world, "data, cluster or both")
      ->check(CLI::IsMember({"data", "cluster", "both"}))
      ->capture_default_str();
  app.add_option("--seeds", options.seeds, "how many seeds")->capture_default_str();
  app.add_option("--from", options.from, "the first one")->capture_default_str();
  app.add_flag("--verbose", options.verbose, "say what each seed was");
  app.add_flag("--trace", options.trace, "cluster: what every process says, and what goes wrong");
  CLI11_PARSE(app, argc, argv);
  bool passed = true;
  if (options.world != "cluster") passed = run_world("data", run_data, options) && passed;
  if (options.world != "data") passed = run_world("cluster", run_cluster, options) && passed;
  return passed ? 0 : 1;
}

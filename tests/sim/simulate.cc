// simulate: whole clusters whose processes die, seed by seed; how a failing seed of the tests is replayed.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "common/base/command_line.h"
#include "tests/sim/cluster_simulation.h"

namespace tributary {
namespace {

struct SimOptions {
  std::uint64_t seeds = 100;
  std::uint64_t from = 1;
  bool verbose = false, trace = false;
};

unsigned long long number(std::uint64_t value) {
  return value;
}

bool run(std::uint64_t seed, const SimOptions& options) {
  const sim::ClusterOutcome outcome = sim::run_cluster(seed, sim::Mutation::kNone, options.trace);
  if (outcome.ok && !options.verbose) return true;
  std::printf("seed %llu: %s\n  %s\n", number(seed), outcome.ok ? "ok" : outcome.failure.c_str(),
              outcome.scenario.describe().c_str());
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

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  using namespace tributary;
  SimOptions options;
  CommandLine app("Runs whole clusters whose processes, machines, connections and disks fail, seed by seed.");
  app.footer("\nA seed decides everything. Replay one with\n  simulate --seeds 1 --from SEED --trace");
  app.add_option("--seeds", options.seeds, "how many seeds")->capture_default_str();
  app.add_option("--from", options.from, "the first one")->capture_default_str();
  app.add_flag("--verbose", options.verbose, "say what each seed was");
  app.add_flag("--trace", options.trace, "what every process says, and what goes wrong");
  if (const auto status = app.parse(argc, argv)) return *status;
  const auto begun = std::chrono::steady_clock::now();
  std::uint64_t failed = 0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) failed += run(options.from + i, options) ? 0 : 1;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%llu of %llu seeds passed in %.1f s\n", number(options.seeds - failed), number(options.seeds),
              took.count());
  return failed == 0 ? 0 : 1;
}

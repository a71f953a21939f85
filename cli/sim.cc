// tributary sim: the round logic under a bad network, seed by seed; how a failing seed of the tests is replayed.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "tests/sim/simulation.h"

namespace tributary::cli {

void add_sim(CLI::App& app, int& exit_status) {
  struct SimOptions {
    std::uint64_t seeds = 100;
    std::uint64_t from = 1;
    bool verbose = false;
  };
  auto options = std::make_shared<SimOptions>();
  CLI::App* command = app.add_subcommand("sim", "run the round logic in a simulated bad network, seed by seed");
  command->footer(
      "\nA seed decides everything: topology, model, optimizer, encodings, delays, duplicates and losses. Replay one "
      "with\n"
      "  tributary sim --seeds 1 --from SEED --verbose");
  command->add_option("--seeds", options->seeds, "how many seeds")->capture_default_str();
  command->add_option("--from", options->from, "the first one")->capture_default_str();
  command->add_flag("--verbose", options->verbose, "say what each seed was");
  command->callback([options, &exit_status] {
    std::uint64_t failed = 0;
    for (std::uint64_t i = 0; i < options->seeds; ++i) {
      const sim::Outcome outcome = sim::run(options->from + i);
      if (outcome.ok && !options->verbose) continue;
      std::printf(
          "seed %llu: %s\n  %s\n  %llu events, %llu messages, %llu sent again, %llu snapshots, %.3f s of virtual "
          "time\n",
          static_cast<unsigned long long>(options->from + i), outcome.ok ? "ok" : outcome.failure.c_str(),
          outcome.scenario.describe().c_str(), static_cast<unsigned long long>(outcome.events),
          static_cast<unsigned long long>(outcome.messages), static_cast<unsigned long long>(outcome.resends),
          static_cast<unsigned long long>(outcome.snapshots), static_cast<double>(outcome.virtual_ns) * 1e-9);
      if (!outcome.ok) ++failed;
    }
    std::printf("%llu of %llu seeds passed\n", static_cast<unsigned long long>(options->seeds - failed),
                static_cast<unsigned long long>(options->seeds));
    if (failed > 0) exit_status = 1;
  });
}

}  // namespace tributary::cli

// tributary bench checkpoint
#include <cstdio>
#include <memory>
#include <string>

#include "bench/checkpoint_bench.h"
#include "cli/commands.h"
#include "common/quantity.h"

namespace tributary::cli {

void add_bench_checkpoint(CLI::App& bench_app, int& exit_status) {
  auto options = std::make_shared<bench::CheckpointBenchOptions>();
  auto state = std::make_shared<std::string>("1GiB");
  CLI::App* command = bench_app.add_subcommand("checkpoint", "what saving a checkpoint costs the rounds meanwhile");
  command->footer(
      "\nPrints one JSON object:\n"
      "  pause_ms         longest round while saving, less the median of the quiet ones\n"
      "  gap_ms           the same of the longest time of a round in which no tensor arrived\n"
      "  noise_ms, gap_noise_ms  the same of the longest quiet round: what is no more than this may be chance\n"
      "  quiet, saving    {rounds, median_round_ms, longest_round_ms, median_gap_ms, longest_gap_ms}; then the\n"
      "                   longest of both with stalls, and stalled_ms in total\n"
      "  stalls_known     times in which no core of the machine ran anything (a hypervisor gave it none) are taken\n"
      "                   out of all times above; false: they are in, because this process may not have real-time\n"
      "                   priority, by which they are found\n"
      "  slowest          the longest rounds while saving {round_ms, after_order_ms}\n"
      "  save_seconds     of each save, from the order to COMPLETE, the snapshot included");
  command->add_option("--servers", options->servers, "servers")->check(CLI::Range(1, 64));
  command->add_option("--nodes", options->nodes, "nodes of one rank each")->check(CLI::Range(1, 64));
  command->add_option("--state", *state, "parameters and AdamW's state, over all servers (1GiB)");
  command->add_option("--saves", options->saves, "how many")->check(CLI::Range(1, 100));
  command->add_option("--quiet", options->quiet_seconds, "seconds before each save")->check(CLI::Range(0.5, 600.0));
  command->add_option("--compute-ms", options->compute_ms, "that ranks sleep between rounds")
      ->check(CLI::Range(0, 10'000));
  command->add_option("--io-mb-per-s", options->io_mb_per_s, "store.io_mb_per_s of each server");
  command->callback([options, state, &exit_status] {
    const auto bytes = parse_bytes(*state);
    if (!bytes) {
      std::fprintf(stderr, "tributary bench checkpoint: --state: %s\n", bytes.error().message.c_str());
      exit_status = 2;
      return;
    }
    options->state_bytes = static_cast<std::uint64_t>(*bytes);
    const auto result = bench::run_checkpoint_bench(*options);
    if (!result) {
      std::fprintf(stderr, "tributary bench checkpoint: %s\n", result.error().message.c_str());
      exit_status = 1;
      return;
    }
    std::printf("%s\n", result->dump().c_str());
  });
}

}  // namespace tributary::cli

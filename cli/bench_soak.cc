// tributary bench soak
#include <cstdio>
#include <memory>

#include "bench/soak.h"
#include "cli/commands.h"

namespace tributary::cli {

void add_bench_soak(CLI::App& bench_app, int& exit_status) {
  auto options = std::make_shared<bench::SoakOptions>();
  CLI::App* command =
      bench_app.add_subcommand("soak", "whether daemons stay as they are over thousands of snapshots, views and jobs");
  command->footer(
      "\nReal daemons on this machine, and a trainer of a tiny model. Prints a JSON object for every phase "
      "(snapshots,\n"
      "views, jobs, attaches, connections) and daemon, and one at the end:\n"
      "  flat             nothing grew by more than is allowed; of all rows in the last object\n"
      "  anonymous_bytes, descriptors, threads, store_bytes\n"
      "                   {first, last, per_unit, grew, allowed}: after the first third of the phase, which warms up;\n"
      "                   per_unit is the median of the slopes between all pairs of samples, grew that over the phase\n"
      "What may grow with jobs: a finished job's record and last snapshot stay. Exit status 1 if anything is not "
      "flat.");
  command->add_option("--snapshots", options->snapshots, "of one job, every four rounds")->capture_default_str();
  command->add_option("--views", options->views, "stops of one job, which is then gone on with")->capture_default_str();
  command->add_option("--jobs", options->jobs, "of a name each, which finish")->capture_default_str();
  command->add_option("--attaches", options->attaches, "of a rank whose neighbour never comes")->capture_default_str();
  command->add_option("--connections", options->connections, "to every port and socket")->capture_default_str();
  command->add_option("--servers", options->servers)->check(CLI::Range(1, 64))->capture_default_str();
  command->add_option("--base-dir", options->base_dir, "for stores and logs (default: a folder in /tmp)");
  command->callback([options, &exit_status] {
    options->tell = [](const nlohmann::ordered_json& row) {
      std::printf("%s\n", row.dump().c_str());
      std::fflush(stdout);
    };
    const auto result = bench::run_soak(*options);
    if (!result) {
      std::fprintf(stderr, "tributary bench soak: %s\n", result.error().message.c_str());
      exit_status = 1;
      return;
    }
    const bool flat = result->at("flat").get<bool>();
    std::printf("%s\n", nlohmann::ordered_json{{"flat", flat}}.dump().c_str());
    exit_status = flat ? 0 : 1;
  });
}

}  // namespace tributary::cli

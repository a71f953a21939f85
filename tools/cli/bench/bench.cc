// tributary bench: runs the measurements of bench/measurements.h, and prints what they find.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "bench/measurements.h"
#include "tools/cli/bench/bench_tables.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/stop_signals.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

void add(CliCommand bench_app, const bench::Measurement& measurement, int& exit_status) {
  const bool listed = *measurement.summary != '\0';
  CliCommand command = bench_app.add_subcommand(measurement.name, listed ? measurement.summary : measurement.words);
  if (!listed) command->group("");
  if (listed) command->footer(std::string("\n") + measurement.words);
  const auto run = measurement.add(*command);
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print one JSON object");
  command->callback([measurement, run, json, listed, &exit_status] {
    std::optional<StopSignals> signals;
    if (measurement.stops) signals.emplace();
    bench::MeasurementRun around;
    around.program = executable_dir() + "/tributary-bench";
    around.interrupted = [&] { return signals && signals->taken_first(); };
    around.tell = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    const bench::MeasurementResult result = run(around);
    if (!result) {
      std::fprintf(stderr, "tributary bench %s: %s\n", measurement.name, result.error().message.c_str());
      exit_status = 1;
    } else if (!result->is_null()) {  // else it has printed
      std::printf("%s\n", *json || !listed ? result->dump().c_str() : tables_of(*result, measurement.columns).c_str());
    }
  });
}

}  // namespace

void add_bench(CliCommand app, int& exit_status) {
  CliCommand command = app.add_subcommand("bench", kBenchHelp);
  command->require_subcommand(1);
  for (const bench::Measurement& measurement : bench::all_measurements()) add(*command, measurement, exit_status);
}

}  // namespace tributary::cli

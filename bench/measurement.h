// The interface of `tributary bench`. A measurement is a file in this folder with its options, its code and the meaning
// of its result; and a line in bench/measurements.cc. Its caller (tools/cli/bench/bench.cc) prints the result, as JSON or
// as tables.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/command_line.h"
#include "common/base/result.h"
#include "kernels/step/optimizer.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::bench {

// The environment of a measurement while it runs.
struct MeasurementRun {
  std::string program;                           // `tributary`, for processes of its own
  std::function<bool()> interrupted;             // has the user asked it to end?
  std::function<void(const std::string&)> tell;  // prints its progress, a line
};

using MeasurementResult = Result<nlohmann::ordered_json>;

struct Measurement {
  const char* name;
  const char* summary = "";  // empty: a process that other measurements start; it is not listed
  const char* words;         // for --help: how it measures, and the fields of its result
  const char* columns = "";  // of tables, as "name,exchange.seconds"; empty: all
  bool stops = false;        // it asks `interrupted`, so that the processes it has started end cleanly
  // Adds its options to `command`, and returns the function that runs it with them.
  std::function<std::function<MeasurementResult(MeasurementRun&)>(CliCommand command)> add;
};

// run: called with the options, and with the MeasurementRun if it takes one. Returns the result as JSON.
template <class Options>
auto measures(void (*add)(CliCommand, Options&), auto run) {
  return [add, run](CliCommand command) -> std::function<MeasurementResult(MeasurementRun&)> {
    auto options = std::make_shared<Options>();
    add(command, *options);
    return [options, run](MeasurementRun& around) -> MeasurementResult {
      const auto result = [&] {
        if constexpr (std::is_invocable_v<decltype(run), Options&>) {
          return run(*options);
        } else {
          return run(*options, around);
        }
      }();
      if (!result) return tl::unexpected(result.error());
      return nlohmann::ordered_json(*result);
    };
  };
}

inline CliOption add_bytes(CliCommand command, const std::string& name, auto& bytes, const std::string& what) {
  return command.add_option(name, bytes, what)->transform(as_bytes());
}
inline void add_transport(CliCommand command, Transport& transport) {
  command
      .add_option_function("--transport", [&transport](const std::string& name) { transport = transport_named(name); })
      ->check(one_of({"tcp", "ipc", "shm"}))
      ->default_str(transport_name(transport));
}
inline void add_optimizer(CliCommand command, std::string& optimizer) {
  const std::vector<std::string_view> names = kernels::optimizer_names();
  command.add_option("--optimizer", optimizer, "of the servers' steps")
      ->check(one_of({names.begin(), names.end()}))
      ->capture_default_str();
}
inline void add_overrides(CliCommand command, std::vector<std::string>& overrides) {
  command.add_option("--set", overrides, "override a key of the job file, as train.epochs=2; may be repeated")
      ->type_name("KEY=VALUE")
      ->once_each();
}

}  // namespace tributary::bench

// tributary bench stragglers.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "bench/stragglers.h"
#include "cli/commands.h"
#include "cli/plot_script.h"
#include "cli/stop_signals.h"
#include "common/durable_file.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFooter = R"(
Trains on Fashion-MNIST with one slow node, the last one, each variant for the same time: sync, weighted (sync with a deadline: late nodes
send what they managed), ssp-1, ssp-4, ssp-16, async, diloco (10 local steps a round). Slowdowns: constant (3 times
as long), random (5 times, in 10 % of the steps), none. A run without slowdown comes first: it says what the ideal is, (n - 1 + 1/f)
nodes' samples a second, and how long the deadline is. Computing is mostly sleeping, so that nodes do not slow down each other.

--json fields: see bench/stragglers.h. With --report, DIR/stragglers.json keeps the runs of earlier calls with the same options, and
DIR/stragglers.html draws all of them; stragglers.json is written after each run, so that one that is interrupted loses no other.)";

struct Arguments {
  bench::StragglerOptions options;
  std::string report;
  bool json = false;
};

int complain(const Error& error) {
  std::fprintf(stderr, "tributary bench stragglers: %s\n", error.message.c_str());
  return 1;
}

Result<Json> read_earlier(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Json();
  Json earlier = Json::parse(in, nullptr, false);
  if (!earlier.is_object()) {
    return fail(ErrorCode::kMalformed, path + " is not what this command wrote; move it away or give another folder");
  }
  return earlier;
}

std::string data_in(const std::string& folder) {
  return folder + "/stragglers.json";
}

// Whole or not at all: it has what earlier calls measured.
Status write_data(const std::string& folder, const Json& result) {
  const std::string data = data_in(folder), fresh = data + ".new";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (auto ok = write_small_file(fresh, result.dump(1) + "\n"); !ok) return ok;
  return rename_durably(fresh, data);
}

Status draw_report(const std::string& folder) {
  const std::string page = folder + "/stragglers.html";
  return run_plot_script("stragglers_report.py", {data_in(folder), page}, page);
}

int run(Arguments& arguments) {
  StopSignals signals;
  bench::StragglerOptions& options = arguments.options;
  options.interrupted = [&] { return signals.taken_first(); };
  options.tell = [&](const std::string& line) {
    std::fprintf(arguments.json ? stderr : stdout, "%s\n", line.c_str());
    std::fflush(stdout);
  };
  Json earlier;
  if (!arguments.report.empty()) {
    auto read = read_earlier(data_in(arguments.report));
    if (!read) return complain(read.error());
    earlier = std::move(*read);
    options.keep = [&](const Json& so_far) { return write_data(arguments.report, so_far); };
  }
  const auto result = bench::run_stragglers(options, earlier);
  if (!result && result.error().code == ErrorCode::kMalformed && !arguments.report.empty()) {
    return complain({ErrorCode::kMalformed, data_in(arguments.report) + " is not what this command wrote: " +
                                                result.error().message + "; move it away or give another folder"});
  }
  if (!result) return complain(result.error());
  if (arguments.json) std::printf("%s\n", result->dump().c_str());
  std::fflush(stdout);
  if (arguments.report.empty()) return 0;
  if (auto ok = write_data(arguments.report, *result); !ok) return complain(ok.error());
  if (auto ok = draw_report(arguments.report); !ok) return complain(ok.error());
  std::fprintf(arguments.json ? stderr : stdout, "wrote %s/stragglers.html\n", arguments.report.c_str());
  return 0;
}

}  // namespace

void add_bench_stragglers(CLI::App& bench_app, int& exit_status) {
  auto arguments = std::make_shared<Arguments>();
  bench::StragglerOptions& o = arguments->options;
  CLI::App* command = bench_app.add_subcommand("stragglers", "what a slow node costs, mode by mode");
  command->footer(kFooter);
  command->add_option("--slowdown", o.slowdowns, "none, constant, random")->delimiter(',')->capture_default_str();
  command->add_option("--variants", o.variants, "some of them, as sync,weighted (default: all)")->delimiter(',');
  command->add_option("--seconds", o.seconds, "of each run")->check(CLI::Range(1.0, 3600.0))->capture_default_str();
  command->add_option("--nodes", o.nodes, "of one rank each")->check(CLI::Range(2, 64))->capture_default_str();
  command->add_option("--batch", o.batch, "samples a step and node")->check(CLI::Range(1, 4096))->capture_default_str();
  command->add_option("--micro-batches", o.micro_batches, "of a step")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  command->add_option("--us-per-sample", o.us_per_sample, "that computing takes, asleep")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command->add_option("--seed", o.seed)->capture_default_str();
  command->add_option("--base-dir", o.base_dir, "keep the files of the last run there")->type_name("FOLDER");
  command->add_option("--report", arguments->report, "write stragglers.json and stragglers.html there")
      ->type_name("DIR");
  command->add_flag("--json", arguments->json, "print the result as one JSON object");
  command->callback([arguments, &exit_status] { exit_status = run(*arguments); });
}

}  // namespace tributary::cli

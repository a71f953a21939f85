// tributary bench compare: variants of lab files beside each other, with a report.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/compare.h"
#include "cli/commands.h"
#include "cli/plot_script.h"
#include "cli/stop_signals.h"
#include "lab/network_namespace.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFailed = 1, kCannot = 2;

constexpr const char* kFooter = R"(
Runs the [[variants]] of a lab file in turn on the same lab, [compare] repetitions times: each variant's exchange alone, and the file's job if it
has one. Without variants: the servers of the file, the flat ring, and Gloo's own ring. Several files are several labs, one after the other. Needs
what `tributary lab` needs.

--report writes DIR/results.json and DIR/report.html, which needs no network connection to be read: all times beside the cost model's
predictions; then, for each lab, step time by variant, where a step's time goes, loss against wall time, bytes on each host's wire, and which
resource binds, in words.
Exit status: 0 done, 1 something failed, 2 it cannot be begun.)";

struct CompareArguments {
  std::vector<std::string> files;
  std::string report, base_dir;
  bench::CompareOptions options;
  std::uint32_t repetitions = 0;
  bool json = false, no_job = false, no_verify = false;
};

int complain(const Error& error, int status = kFailed) {
  std::fprintf(stderr, "tributary bench compare: %s\n", error.message.c_str());
  return status;
}

Status write_report(const std::string& folder, const Json& result) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string data = folder + "/results.json", page = folder + "/report.html";
  std::ofstream out(data, std::ios::trunc);
  out << result.dump(1) << "\n";
  out.close();
  if (error || !out) return fail(ErrorCode::kIo, "cannot write " + data + "; is its folder writable?");
  return run_plot_script("report.py", {data, page}, page);
}

void print_table(const Json& result) {
  std::printf("%s: exchange, median of %d (model %.1f MB, goodput %.2f MB/s):\n",
              result.at("lab").at("name").get<std::string>().c_str(), result.at("repetitions").get<int>(),
              result.at("model_bytes").get<double>() * 1e-6,
              result.at("lab").at("goodput_bytes_per_s").get<double>() * 1e-6);
  for (const auto& v : result.at("variants")) {
    const auto& e = v.at("exchange");
    std::printf("  %-24s %8.1f ms, %.3f x model / goodput", v.at("name").get<std::string>().c_str(),
                1e3 * e.at("seconds").at("median").get<double>(), e.at("ratio").get<double>());
    if (e.at("error").is_number()) {
      std::printf(", predicted %.1f ms (%+.1f %%)", 1e3 * e.at("predicted").at("seconds").get<double>(),
                  1e2 * e.at("error").get<double>());
    }
    std::printf("\n    %s\n", e.at("binds").get<std::string>().c_str());
    const auto& j = v.at("job");
    if (!j.is_object()) continue;
    std::printf("    training: %.1f ms a round, %.1f s in all, %.1f bytes a sample on the wires",
                1e3 * j.at("step_seconds").at("median").get<double>(), j.at("seconds").get<double>(),
                j.at("wire_bytes_per_sample").get<double>());
    if (j.at("test_accuracy").is_number()) std::printf(", test accuracy %.4f", j.at("test_accuracy").get<double>());
    std::printf(". %s\n", j.at("binds").get<std::string>().c_str());
  }
  for (const auto& s : result.at("speedups")) {
    std::printf("  %s exchanges %.2f times as fast as %s\n", s.at("of").get<std::string>().c_str(),
                s.at("times").get<double>(), s.at("over").get<std::string>().c_str());
  }
}

// One lab, from up to down.
Result<Json> compare_in(const lab::LabConfig& config, const CompareArguments& a,
                        const std::function<bool()>& interrupted) {
  auto lab = lab::Lab::up(config, true, interrupted);
  if (!lab) return tl::unexpected(lab.error());
  if ((*lab)->links().empty() && !a.no_verify) {
    constexpr double kSeconds = 1.0;
    if (auto ok = (*lab)->verify(kSeconds, interrupted); !ok) return tl::unexpected(ok.error());
  }
  bench::CompareOptions o = a.options;
  o.exchange.run.base_dir = (a.base_dir.empty() ? "runs" : a.base_dir) + "/" + config.name;
  o.exchange.run.interrupted = interrupted;
  if (o.exchange.model_bytes == 0) o.exchange.model_bytes = config.exchange.model_bytes;
  if (o.exchange.rounds == 0) o.exchange.rounds = config.exchange.rounds;
  o.exchange.warmup = config.exchange.warmup;
  o.exchange.optimizer = config.exchange.optimizer;
  o.repetitions = a.repetitions == 0 ? config.compare.repetitions : a.repetitions;
  o.with_job = !a.no_job;
  o.tell = [&](const std::string& line) { std::fprintf(stderr, "%s: %s\n", config.name.c_str(), line.c_str()); };
  return bench::run_compare(**lab, o);
}

int compare(const CompareArguments& a) {
  StopSignals signals;
  const auto interrupted = [&] { return signals.taken_first(); };
  std::vector<lab::LabConfig> configs;  // all files are read before the first lab is up
  for (const std::string& file : a.files) {
    auto config = lab::load_lab_config(file);
    if (!config) return complain(config.error(), kCannot);
    configs.push_back(std::move(*config));
  }
  if (auto ok = lab::may_make_namespaces(); !ok) return complain(ok.error(), kCannot);
  Json results = {{"labs", Json::array()}};
  for (const lab::LabConfig& config : configs) {
    auto result = compare_in(config, a, interrupted);
    if (!result) return complain(result.error());
    if (!a.json) print_table(*result);
    std::fflush(stdout);
    results["labs"].push_back(std::move(*result));
  }
  if (a.json) std::printf("%s\n", results.dump().c_str());
  std::fflush(stdout);
  if (a.report.empty()) return 0;
  if (auto ok = write_report(a.report, results); !ok) return complain(ok.error());
  std::fprintf(a.json ? stderr : stdout, "wrote %s/report.html\n", a.report.c_str());
  return 0;
}

}  // namespace

void add_bench_compare(CLI::App& bench, int& exit_status) {
  auto a = std::make_shared<CompareArguments>();
  a->options.exchange.model_bytes = 0;
  a->options.exchange.rounds = 0;
  CLI::App* command = bench.add_subcommand("compare", "modes and encodings in turn on the same lab, with a report");
  command->footer(kFooter);
  command->add_option("labs", a->files, "the TOML file of each lab")->required()->type_name("LAB.toml");
  command->add_option("--report", a->report, "write results.json and report.html there")->type_name("DIR");
  command->add_option("--repetitions", a->repetitions, "of every variant (default: the file's)");
  command->add_option("--set", a->options.exchange.run.overrides, "override a key of the job in all variants")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--model-bytes", a->options.exchange.model_bytes, "fp32 parameters of the exchanges, as 16MiB")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--rounds", a->options.exchange.rounds, "measured, of each exchange");
  command
      ->add_option("--base-dir", a->base_dir,
                   "folder for files of the runs, with one of the lab's name in it (default: runs)")
      ->type_name("FOLDER");
  command->add_flag("--no-job", a->no_job, "only the exchanges");
  command->add_flag("--no-verify", a->no_verify, "take the links' goodput from their rates, without iperf3");
  command->add_flag("--json", a->json, "print the result as one JSON object");
  command->callback([a, &exit_status] { exit_status = compare(*a); });
}

}  // namespace tributary::cli

#include "bench/lab/repeated_runs.h"

#include <algorithm>
#include <utility>

#include "common/math/median.h"
#include "tools/lab/network_namespace.h"

namespace tributary::bench {

Json spread(const std::vector<double>& values) {
  return {{"median", median(values)},
          {"min", *std::ranges::min_element(values)},
          {"max", *std::ranges::max_element(values)},
          {"all", values}};
}

std::vector<double> column(const std::vector<Json>& runs, const std::function<double(const Json&)>& field) {
  std::vector<double> values;
  for (const Json& run : runs) values.push_back(field(run));
  return values;
}

double number(const Json& json, const char* key) {
  return json.at(key).get<double>();
}

// The resources of an exchange or a job in one round, medians over the repetitions.
Json usage(const std::vector<Json>& runs) {
  Json bytes = Json::array();
  const auto& hosts = runs.front().at("hosts");
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto per_round = [&](const char* key) {
      return median(
          column(runs, [&](const Json& r) { return number(r.at("hosts").at(i), key) / number(r, "rounds"); }));
    };
    bytes.push_back({{"host", hosts[i].at("name")},
                     {"sent", per_round("wire_bytes_sent")},
                     {"received", per_round("wire_bytes_received")}});
  }
  Json processes = Json::array();
  const auto& cpu = runs.front().at("cpu");
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    processes.push_back({{"name", cpu[i].at("name")}, {"seconds", median(column(runs, [&](const Json& r) {
                                                         return number(r.at("cpu").at(i), "seconds") /
                                                                number(r, "rounds");
                                                       }))}});
  }
  return {{"wire_bytes", std::move(bytes)},
          {"processes", std::move(processes)},
          {"cpu_seconds",
           median(column(runs, [](const Json& r) { return number(r, "cpu_seconds") / number(r, "rounds"); }))},
          {"machine_busy", median(column(runs, [](const Json& r) { return number(r, "machine_busy"); }))},
          {"drops", median(column(runs, [](const Json& r) { return number(r, "drops"); }))},
          {"retransmits", median(column(runs, [](const Json& r) { return number(r, "retransmits"); }))}};
}

Json described(const lab::Lab& lab) {
  Json hosts = Json::array(), links = Json::array();
  for (const lab::LabHost& h : lab.config().hosts) {
    hosts.push_back({{"name", h.name},
                     {"worker", h.worker},
                     {"server", h.server},
                     {"ranks", h.worker ? h.ranks : 0},
                     {"up_mbit", h.up_mbit},
                     {"down_mbit", h.down_mbit}});
  }
  for (const lab::LinkCheck& check : lab.links()) links.push_back(lab::to_json(check));
  return {{"name", lab.config().name},
          {"rate_mbit", lab.config().rate_mbit},
          {"hosts", std::move(hosts)},
          {"links", std::move(links)},
          {"goodput_bytes_per_s", lab::goodput_bytes_per_s(lab.config(), lab.links())},
          {"goodput_from", lab.links().empty() ? "rate" : "iperf3"}};
}

void add_lab_arguments(CliCommand command, LabArguments& arguments) {
  command.add_option("labs", arguments.files, "the TOML file of each lab")->required()->type_name("LAB.toml");
  command.add_option("--repetitions", arguments.repetitions, "of every variant (default: the file's)");
  command
      .add_option("--base-dir", arguments.base_dir, "folder for files of the runs, with one of the lab's name in it")
      ->type_name("FOLDER")
      ->capture_default_str();
  command.add_flag("--no-verify", arguments.no_verify, "take the links' goodput from their rates, without iperf3");
}

namespace {

Result<Json> measure_lab(const lab::LabConfig& config, bool verify, const MeasurementRun& run,
                         const std::function<Result<Json>(const lab::Lab&)>& measure) {
  const auto lab = lab::Lab::up(config, true, run.interrupted);
  if (!lab) return tl::unexpected(lab.error());
  if ((*lab)->links().empty() && verify) {
    constexpr double kSeconds = 1.0;
    if (auto ok = (*lab)->verify(kSeconds, run.interrupted); !ok) return tl::unexpected(ok.error());
  }
  return measure(**lab);
}

}  // namespace

MeasurementResult measure_labs(const LabArguments& arguments, MeasurementRun& run,
                               const std::function<Result<Json>(const lab::Lab&)>& measure) {
  std::vector<lab::LabConfig> configs;
  for (const std::string& file : arguments.files) {
    auto config = lab::load_lab_config(file);
    if (!config) return tl::unexpected(config.error());
    configs.push_back(std::move(*config));
  }
  if (auto ok = lab::may_make_namespaces(); !ok) return tl::unexpected(ok.error());
  Json results = {{"labs", Json::array()}};
  for (const lab::LabConfig& config : configs) {
    auto result = measure_lab(config, !arguments.no_verify, run, measure);
    if (!result) return tl::unexpected(result.error());
    results["labs"].push_back(std::move(*result));
  }
  return results;
}

}  // namespace tributary::bench

#include "tools/lab/lab_run.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "common/config/config_toml.h"
#include "tools/cluster/local_cluster.h"
#include "tools/cluster/run_folder.h"
#include "tools/lab/gate.h"
#include "tools/lab/hosted_cluster.h"
#include "tools/lab/hosted_ranks.h"

namespace tributary::lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The job of an exchange: nothing but what moves and how.
Result<std::string> write_exchange_job(const ExchangeOptions& options) {
  if (auto ok = make_folder(options.run.base_dir); !ok) return tl::unexpected(ok.error());
  std::error_code error;
  const std::string path = fs::absolute(options.run.base_dir, error).string() + "/exchange.toml";
  std::ofstream out(path, std::ios::trunc);
  out << "# Written by tributary lab run --exchange.\n[job]\nname = \"lab-exchange\"\n\n[optimizer]\nname = \""
      << options.optimizer << "\"\nlr = 0.001\n\n[snapshot]\nevery_s = 0\nevery_rounds = 0\n";
  out.close();
  if (!out) return fail(ErrorCode::kIo, "cannot write " + path);
  return path;
}

std::vector<std::string> exchange_arguments(const ExchangeOptions& options, const std::string& gate) {
  return {"--model-bytes", std::to_string(options.model_bytes), "--rounds", std::to_string(options.rounds),
          "--warmup",      std::to_string(options.warmup),      "--gate",   gate};
}

Result<Json> exchange_result(const Lab& lab, const std::string& mode, const MeasuredRanks& measured,
                             const std::vector<Watched>& processes) {
  auto times = round_times(measured.results);
  if (!times) return tl::unexpected(times.error());
  const double goodput = goodput_bytes_per_s(lab.config(), lab.links());
  const double ideal = times->at("model_bytes").get<double>() / goodput;
  Json result = {{"lab", lab.config().name}, {"kind", "exchange"}, {"mode", mode}};
  result.update(*times);
  result["goodput_bytes_per_s"] = goodput;
  result["goodput_from"] = lab.links().empty() ? "rate" : "iperf3";
  result["model_over_goodput_seconds"] = ideal;
  result["ratio"] = times->at("round_seconds").get<double>() / ideal;
  const auto& first = measured.results.front();
  if (first.contains("chunk_bytes")) result["chunk_bytes"] = first.at("chunk_bytes");
  result.update(usage_between(lab, processes, measured.before, measured.after));
  return result;
}

// Runs the ranks of `command` next to a cluster's workers, between both gates; returns `result` of them. Stops the
// cluster.
Result<Json> through_daemons(
    const Lab& lab, const RunOptions& run, LocalCluster& cluster, const std::vector<std::string>& command,
    const std::string& gate,
    const std::function<Result<Json>(const MeasuredRanks&, const std::vector<Watched>&)>& result) {
  const auto measure = [&]() -> Result<Json> {
    if (auto ok = cluster.start_trainers({.command = command, .progress_socket = {}}); !ok)
      return tl::unexpected(ok.error());
    const std::vector<Watched> processes = watched(cluster);
    const auto measured =
        measure_ranks(lab, cluster.trainers(), processes, gate, [&] { return healthy(cluster, run); });
    if (!measured) return tl::unexpected(measured.error());
    return result(*measured, processes);
  };
  auto made = measure();
  made ? cluster.stop() : cluster.stop_now();
  return made;
}

}  // namespace

Result<Json> run_exchange(const Lab& lab, const ExchangeOptions& options) {
  const auto job_file = write_exchange_job(options);
  if (!job_file) return tl::unexpected(job_file.error());
  const auto job = load_job_config(*job_file, options.run.overrides);
  if (!job) return tl::unexpected(job.error());
  auto cluster = start_cluster(lab, options.run, servers_for(*job), false);
  if (!cluster) return tl::unexpected(cluster.error());
  const auto gate = fresh_folder(options.run, "gates");
  if (!gate) return tl::unexpected(gate.error());
  return through_daemons(lab, options.run, **cluster,
                         job_command({bin_dir_of(options.run) + "/tributary-bench", "bench", "exchange-rank"},
                                     *job_file, options.run.overrides, exchange_arguments(options, *gate)),
                         *gate, [&](const MeasuredRanks& measured, const std::vector<Watched>& processes) {
                           return exchange_result(lab, word(job->mode), measured, processes);
                         });
}

namespace {

// The folder of a run without daemons, as LocalCluster makes it of others; gives its path.
Result<std::string> lone_folder(const RunOptions& run) {
  std::error_code error;
  const std::string folder = fs::absolute(run.base_dir, error).string();
  if (auto ok = make_folder(folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = claim_run_folder(folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = remove_run(folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = make_folder(folder + "/logs"); !ok) return tl::unexpected(ok.error());
  return folder;
}

// Between both gates, and what was measured there.
Result<MeasuredRanks> measure_lone(const Lab& lab, const RunOptions& run, LoneRanks& ranks, const std::string& gate) {
  return measure_ranks(lab, ranks.ranks(), ranks.watched(), gate, [&]() -> Status {
    if (auto ok = not_interrupted(run); !ok) return ok;
    return ranks.healthy();
  });
}

Result<Json> program_result(const Lab& lab, const MeasuredRanks& measured, const std::vector<Watched>& processes) {
  auto result = round_times(measured.results);
  if (!result) return result;
  result->update(usage_between(lab, processes, measured.before, measured.after));
  (*result)["ranks"] = measured.results;
  return result;
}

// Runs the ranks alone, with torchrun's environment.
Result<Json> run_lone_program(const Lab& lab, const ProgramOptions& options, const std::string& gate) {
  const auto folder = lone_folder(options.run);
  if (!folder) return tl::unexpected(folder.error());
  const auto program = [&](const LoneRanks::Place& place) {
    return LoneRanks::Program{.argv = options.command,
                              .environment = {{"RANK", std::to_string(place.rank)},
                                              {"WORLD_SIZE", std::to_string(place.ranks)},
                                              {"LOCAL_RANK", std::to_string(place.local_rank)},
                                              {"LOCAL_WORLD_SIZE", std::to_string(place.local_ranks)},
                                              {"GROUP_RANK", std::to_string(place.host)},
                                              {"MASTER_ADDR", place.first_address},
                                              {"MASTER_PORT", "29500"},
                                              {"GLOO_SOCKET_IFNAME", kHostInterface}}};
  };
  auto ranks = LoneRanks::start(lab, *folder + "/logs", "trainer", LoneRanks::kAll, program);
  if (!ranks) return tl::unexpected(ranks.error());
  const auto measured = measure_lone(lab, options.run, *ranks, gate);
  if (!measured) return tl::unexpected(measured.error());
  return program_result(lab, *measured, ranks->watched());
}

Result<Json> run_hosted_program(const Lab& lab, const ProgramOptions& options, const std::string& gate) {
  auto cluster = start_cluster(lab, options.run, options.servers, false);
  if (!cluster) return tl::unexpected(cluster.error());
  return through_daemons(lab, options.run, **cluster, options.command, gate,
                         [&](const MeasuredRanks& measured, const std::vector<Watched>& processes) {
                           return program_result(lab, measured, processes);
                         });
}

}  // namespace

Result<Json> run_program(const Lab& lab, const ProgramOptions& options) {
  if (auto ok = make_folder(options.run.base_dir); !ok) return tl::unexpected(ok.error());
  const auto gate = fresh_folder(options.run, "gates");
  if (!gate) return tl::unexpected(gate.error());
  ProgramOptions with_gate = options;
  with_gate.command.insert(with_gate.command.end(), {"--gate", *gate});
  return options.servers == ServerHosts::kNone ? run_lone_program(lab, with_gate, *gate)
                                               : run_hosted_program(lab, with_gate, *gate);
}

Result<Json> run_gloo_ring(const Lab& lab, const ExchangeOptions& options) {
  const auto folder = lone_folder(options.run);
  if (!folder) return tl::unexpected(folder.error());
  for (const char* name : {"gates", "gloo"}) {
    if (auto made = fresh_folder(options.run, name); !made) return tl::unexpected(made.error());
  }
  const auto program = [&](const LoneRanks::Place& place) {
    LoneRanks::Program rank{.argv = {bin_dir_of(options.run) + "/tributary-bench", "bench", "gloo-ring-rank", "--rank",
                                     std::to_string(place.rank), "--size", std::to_string(place.ranks), "--address",
                                     place.address, "--store", *folder + "/gloo"},
                            .environment = {}};
    const auto arguments = exchange_arguments(options, *folder + "/gates");
    rank.argv.insert(rank.argv.end(), arguments.begin(), arguments.end());
    return rank;
  };
  auto ranks = LoneRanks::start(lab, *folder + "/logs", "gloo", 1, program);
  if (!ranks) return tl::unexpected(ranks.error());
  const auto measured = measure_lone(lab, options.run, *ranks, *folder + "/gates");
  if (!measured) return tl::unexpected(measured.error());
  return exchange_result(lab, "gloo ring", *measured, ranks->watched());
}

}  // namespace tributary::lab

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
  std::vector<std::string> arguments = {
      "--model-bytes", std::to_string(options.model_bytes), "--rounds", std::to_string(options.rounds),
      "--warmup",      std::to_string(options.warmup),      "--gate",   gate};
  if (options.flowing) arguments.push_back("--flowing");
  return arguments;
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

}  // namespace

Result<Json> run_exchange(const Lab& lab, const ExchangeOptions& options) {
  const auto job_file = write_exchange_job(options);
  if (!job_file) return tl::unexpected(job_file.error());
  const auto job = load_job_config(*job_file, options.run.overrides);
  if (!job) return tl::unexpected(job.error());
  auto cluster = start_cluster(lab, options.run, *job, false);
  if (!cluster) return tl::unexpected(cluster.error());
  const auto gate = fresh_folder(options.run, "gates");
  if (!gate) return tl::unexpected(gate.error());
  const auto measure = [&]() -> Result<Json> {
    if (auto ok = (*cluster)->start_trainers(
            {.command = job_command({bin_dir_of(options.run) + "/tributary", "bench", "exchange-rank"}, *job_file,
                                    options.run.overrides, exchange_arguments(options, *gate)),
             .progress_socket = {}});
        !ok)
      return tl::unexpected(ok.error());
    const std::vector<Watched> processes = watched(**cluster);
    const auto measured =
        measure_ranks(lab, (*cluster)->trainers(), processes, *gate, [&] { return healthy(**cluster, options.run); });
    if (!measured) return tl::unexpected(measured.error());
    return exchange_result(lab, word(job->mode), *measured, processes);
  };
  auto result = measure();
  result ? (*cluster)->stop() : (*cluster)->stop_now();
  return result;
}

Result<Json> run_gloo_ring(const Lab& lab, const ExchangeOptions& options) {
  std::error_code error;
  const std::string folder = fs::absolute(options.run.base_dir, error).string();
  if (auto ok = make_folder(folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = claim_run_folder(folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = remove_run(folder); !ok) return tl::unexpected(ok.error());
  if (auto ok = make_folder(folder + "/logs"); !ok) return tl::unexpected(ok.error());
  for (const char* name : {"gates", "gloo"}) {
    if (auto made = fresh_folder(options.run, name); !made) return tl::unexpected(made.error());
  }
  std::vector<Trainer> ranks;
  for (std::size_t i = 0; i < lab.config().hosts.size(); ++i) {
    if (!lab.config().hosts[i].worker) continue;
    const auto number = static_cast<std::uint32_t>(ranks.size());
    Trainer rank;
    rank.rank = number;
    rank.log_file = folder + "/logs/gloo-" + std::to_string(number) + ".log";
    rank.network_namespace = namespace_path(lab.plan().hosts[i].network_namespace);
    rank.argv = {bin_dir_of(options.run) + "/tributary",
                 "bench",
                 "gloo-ring-rank",
                 "--rank",
                 std::to_string(number),
                 "--size",
                 std::to_string(lab.config().workers()),
                 "--address",
                 lab.plan().hosts[i].address,
                 "--store",
                 folder + "/gloo"};
    const auto arguments = exchange_arguments(options, folder + "/gates");
    rank.argv.insert(rank.argv.end(), arguments.begin(), arguments.end());
    auto process =
        Process::spawn({.argv = rank.argv, .log_file = rank.log_file, .network_namespace = rank.network_namespace});
    if (!process) return tl::unexpected(process.error());
    rank.process = std::move(*process);
    ranks.push_back(std::move(rank));
  }
  std::vector<Watched> processes;
  for (Trainer& rank : ranks) processes.push_back({"rank " + std::to_string(rank.rank), &rank.process});
  const auto measured = measure_ranks(lab, ranks, processes, folder + "/gates", [&]() -> Status {
    if (auto ok = not_interrupted(options.run); !ok) return ok;
    for (Trainer& rank : ranks) {
      const auto status = rank.process.poll();
      if (!status || status->ok()) continue;
      return fail(ErrorCode::kUnavailable, "Gloo's rank " + std::to_string(rank.rank) + " " + status->describe() +
                                               "; the last lines of " + rank.log_file + ":\n" +
                                               last_lines(rank.log_file, LocalCluster::kReportedLogLines));
    }
    return {};
  });
  if (!measured) return tl::unexpected(measured.error());
  return exchange_result(lab, "gloo ring", *measured, processes);
}

}  // namespace tributary::lab

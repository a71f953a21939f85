// `tributary bench staleness`: does the bound on staleness hold? Servers, workers and ranks as real processes; the
// ranks count themselves what their parameters hold (staleness_rank.h).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/measurements.h"
#include "bench/scratch_folder.h"
#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"
#include "tools/cluster/trainer_result.h"

namespace tributary::bench {
namespace {

struct StalenessOptions {
  std::vector<std::string> bounds = {"3"};     // as on the command line
  std::optional<std::uint64_t> staleness = 3;  // of this run; none: async
  std::uint16_t servers = 2;
  std::uint32_t nodes = 3;
  std::uint32_t ranks_per_node = 1;
  std::uint32_t chunks = 32;
  std::uint64_t pulls = 10'000;  // at least so many, over all nodes
  std::uint32_t slow_us = 400;   // staleness_rank.h
  std::uint64_t seed = 1;
  Transport transport = Transport::kShm;
  double seconds = 600.0;  // at most
  std::string program;     // tributary
};

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kClockPoll{5};
constexpr unsigned kChunkBytes = 4096;  // the smallest there are; a rank's tensors are chunks

Result<std::string> write_job(const std::string& folder, const StalenessOptions& options) {
  const std::string path = folder + "/job.toml";
  std::ofstream out(path);
  out << "[job]\nname = \"staleness\"\nchunk_bytes = " << kChunkBytes << "\nmode = \""
      << (options.staleness ? "ssp" : "async") << "\"\n";
  if (options.staleness) out << "[ssp]\nstaleness = " << *options.staleness << "\n";
  out << "[optimizer]\nname = \"sgd\"\nlr = 1.0\n[snapshot]\nevery_s = 0\n";
  out.close();
  if (!out) return fail(ErrorCode::kIo, "cannot write " + path);
  return path;
}

Status wait_for(LocalCluster& cluster, double seconds) {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    const bool running = cluster.trainers_running();
    if (const auto failure = cluster.failure()) return fail(ErrorCode::kUnavailable, *failure);
    if (!running) return {};
    if (Clock::now() >= until) return fail(ErrorCode::kTimeout, "the ranks did not end in time");
    std::this_thread::sleep_for(kClockPoll);
  }
}

Json summary_of(const StalenessOptions& options, const std::vector<Json>& ranks) {
  std::uint64_t pulls = 0, sum = 0, most = 0, total = 0;
  std::vector<std::uint64_t> histogram;
  Json violations = {{"own", 0}, {"stale", 0}, {"ahead", 0}, {"torn", 0}, {"lost", 0}, {"end", 0}};
  std::string first;
  bool agrees = true;
  for (const Json& rank : ranks) {
    for (auto& [kind, count] : violations.items()) {
      const auto more = rank.at("violations").at(kind).get<std::uint64_t>();
      count = count.get<std::uint64_t>() + more;
      total += more;
    }
    const auto said = rank.at("first_violation").get<std::string>();
    if (first.empty() && !said.empty()) first = "rank " + rank.at("rank").dump() + ", " + said;
    agrees =
        agrees && rank.at("told_sum") == rank.at("staleness_sum") && rank.at("told_max") == rank.at("max_staleness");
    if (rank.at("rank").get<std::uint32_t>() % options.ranks_per_node != 0) continue;  // a node pulls once
    pulls += rank.at("pulls").get<std::uint64_t>();
    sum += rank.at("staleness_sum").get<std::uint64_t>();
    most = std::max(most, rank.at("max_staleness").get<std::uint64_t>());
    const auto counts = rank.at("histogram").get<std::vector<std::uint64_t>>();
    histogram.resize(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) histogram[i] += counts[i];
  }
  while (histogram.size() > 1 && histogram.back() == 0) histogram.pop_back();
  violations["total"] = total;
  return {{"pulls", pulls},
          {"violations", violations},
          {"first_violation", first},
          {"max_staleness", most},
          {"mean_staleness", pulls == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(pulls)},
          {"histogram", histogram},
          {"told_agrees", agrees}};
}

// {staleness (null: async), nodes, ranks_per_node, clocks, chunks, transport, pulls (of nodes), violations (of all
// ranks, by kind, and total), first_violation, max_staleness, mean_staleness, histogram (by staleness, without zeros at
// its end), told_agrees (what the answers say is what the parameters show), seconds}
Result<Json> run_staleness(const StalenessOptions& options) {
  if (options.nodes == 0 || options.ranks_per_node == 0 || options.chunks == 0) {
    return fail(ErrorCode::kInvalidArgument, "nodes, ranks per node and chunks must be at least 1");
  }
  const ScratchFolder folder;
  if (folder.path.empty()) return fail(ErrorCode::kIo, "cannot create a folder in /tmp");
  const auto job = write_job(folder.path, options);
  if (!job) return tl::unexpected(job.error());
  auto started = LocalCluster::start({.servers = options.servers,
                                      .nodes = options.nodes,
                                      .ranks_per_node = options.ranks_per_node,
                                      .transport = options.transport,
                                      .base_dir = folder.path + "/run",
                                      .store = false,
                                      .log_level = "warn"});
  if (!started) return tl::unexpected(started.error());
  LocalCluster& cluster = **started;
  const std::uint64_t per_clock = std::uint64_t{options.nodes} * options.chunks;
  const std::uint64_t clocks = std::max<std::uint64_t>((options.pulls + per_clock - 1) / per_clock, 1);
  const auto begin = Clock::now();
  const auto run = [&]() -> Result<std::vector<Json>> {
    if (auto ok = cluster.start_trainers(
            {.command =
                 job_command({options.program, "bench", "staleness-rank"}, *job, {},
                             {"--chunks", std::to_string(options.chunks), "--clocks", std::to_string(clocks),
                              "--slow-us", std::to_string(options.slow_us), "--seed", std::to_string(options.seed)}),
             .progress_socket = {}});
        !ok)
      return tl::unexpected(ok.error());
    if (auto ok = wait_for(cluster, options.seconds); !ok) return tl::unexpected(ok.error());
    return parsed_results(cluster);
  };
  const auto ranks = run();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  ranks ? cluster.stop() : cluster.stop_now();
  if (!ranks) return tl::unexpected(ranks.error());
  Json result = {{"staleness", options.staleness ? Json(*options.staleness) : Json(nullptr)},
                 {"servers", options.servers},
                 {"nodes", options.nodes},
                 {"ranks_per_node", options.ranks_per_node},
                 {"chunks", options.chunks},
                 {"clocks", clocks},
                 {"transport", transport_name(options.transport)}};
  result.update(summary_of(options, *ranks));
  result["seconds"] = seconds;
  return result;
}

// "async" or a number.
std::string check_bound(const std::string& text) {
  const bool digits = !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
  return digits || text == "async" ? "" : "use a number of clocks, or async";
}

}  // namespace

Measurement staleness() {
  const auto add = [](CliCommand command, StalenessOptions& o) {
    command.add_option("--staleness", o.bounds, "bounds, one run each, as 0,1,4,16 or async")
        ->delimiter(',')
        ->check(accepted_by([](const std::string& text) { return check_bound(text); }, "BOUND"))
        ->capture_default_str();
    command.add_option("--servers", o.servers)->capture_default_str();
    command.add_option("--nodes", o.nodes)->capture_default_str();
    command.add_option("--ranks-per-node", o.ranks_per_node)->capture_default_str();
    command.add_option("--chunks", o.chunks, "of 4 KiB")->capture_default_str();
    command.add_option("--pulls", o.pulls, "at least, over all nodes")->capture_default_str();
    command.add_option("--slow-us", o.slow_us, "longest sleep of the slow node before a push")->capture_default_str();
    command.add_option("--seed", o.seed)->capture_default_str();
    add_transport(command, o.transport);
    command.add_option("--seconds", o.seconds, "at most, for each")->capture_default_str();
  };
  return {
      .name = "staleness",
      .summary = "does the bound on staleness hold, as ranks see it?",
      .words =
          R"(Servers, workers and ranks run as processes of their own on this machine. With plain SGD and learning rate 1 the ranks make gradients
from which every parameter counts the pushes of one node; so each rank sees for itself, in every chunk it pulls, what the
servers promise: that its own pushes are in there, each once, and those of all nodes up to its clock minus the bound. One node at a
time is slowed at random.

A row for each bound: staleness, clocks, pulls (chunks answered to nodes), violations {own, stale, ahead, torn, lost, end,
total}, first_violation, max_staleness, mean_staleness, histogram (pulls by staleness: the reader's clock minus the slowest
node's push in the chunk), told_agrees (whether the answers' own figures say the same). Exit status 1 if there is any violation.)",
      .add = measures<StalenessOptions>(add, [](StalenessOptions& options, MeasurementRun& run) -> Status {
        options.program = run.program;
        for (const std::string& bound : options.bounds) {
          options.staleness.reset();
          if (bound != "async") options.staleness = std::stoull(bound);
          const auto result = run_staleness(options);
          if (auto ok = yield(run, result); !ok) return ok;
          if (result->at("violations").at("total").get<std::uint64_t>() != 0) run.held = false;
        }
        return {};
      })};
}

}  // namespace tributary::bench

// `tributary bench elastic`: a job whose nodes come and go while it trains. Real daemons and built-in trainers on this
// machine; nodes join by starting their trainers, and leave by SIGTERM to their worker, as spot machines end.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/elastic_coverage.h"
#include "bench/measurements.h"
#include "common/base/exit_codes.h"
#include "common/base/result.h"
#include "common/config/config_toml.h"
#include "tools/cluster/local_cluster.h"
#include "tools/cluster/progress_socket.h"
#include "tools/cluster/trainer_result.h"
#include "train/dataset.h"
#include "train/sampler.h"

namespace tributary::bench {
namespace {

struct ElasticOptions {
  std::string job_file;
  std::vector<std::string> overrides;         // as --set takes them
  std::vector<std::uint32_t> nodes{2, 4, 3};  // of each phase; phases have equally many rounds
  std::uint16_t servers = 2;
  std::uint32_t ranks_per_node = 1;
  Transport transport = Transport::kShm;
  std::string base_dir;
  std::string bin_dir;  // as ClusterOptions::bin_dir
  // Every sample takes so long more, asleep (train/slow_motion.h): nodes do not slow down each other on few processors.
  double us_per_sample = 0.0;
  bool only = false;  // without a run with the first phase's nodes from beginning to end
  std::function<bool()> interrupted = [] { return false; };
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kRoundPoll{1};
constexpr std::chrono::seconds kRoundPatience{120};  // without any new round

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// The job's sampler, as if it had one rank.
Result<train::Sampler> whole_sampler(const ElasticOptions& options) {
  const auto job = load_job_config(options.job_file, options.overrides);
  if (!job) return tl::unexpected(job.error());
  const auto images = train::load_training_set(job->train);
  if (!images) return tl::unexpected(images.error());
  return train::Sampler::make({.samples = images->count,
                               .global_batch = job->train.global_batch,
                               .local_steps = has_local_steps(*job) ? job->local.steps : 1,
                               .seed = job->train.seed,
                               .elastic = true});
}

class Run {
 public:
  Run(const ElasticOptions& options, std::vector<std::uint32_t> nodes, std::string folder,
      const train::Sampler& sampler)
      : options_(options), nodes_(std::move(nodes)), folder_(std::move(folder)), coverage_(sampler) {}

  Result<Json> run() {
    const std::uint32_t most = *std::ranges::max_element(nodes_);
    auto cluster = LocalCluster::start({.servers = options_.servers,
                                        .nodes = most,
                                        .ranks_per_node = options_.ranks_per_node,
                                        .transport = options_.transport,
                                        .base_dir = options_.base_dir + "/" + folder_,
                                        .fresh = true,
                                        .log_level = "info",
                                        .bin_dir = options_.bin_dir});
    if (!cluster) return tl::unexpected(cluster.error());
    cluster_ = std::move(*cluster);
    auto result = phases();
    result ? cluster_->stop() : cluster_->stop_now();
    return result;
  }

 private:
  Result<Json> phases() {
    const std::string socket = cluster_->socket_dir() + "/progress.sock";
    auto progress = ProgressSocket::listen(socket);
    if (!progress) return tl::unexpected(progress.error());
    progress_.emplace(std::move(*progress));
    std::vector<std::string> overrides = options_.overrides;
    overrides.push_back("membership.on_worker_loss=continue");
    trainers_.command =
        cluster_->train_command(std::filesystem::absolute(options_.job_file).string(), overrides,
                                {"--json", "--quiet", "--slow-us-per-sample", std::to_string(options_.us_per_sample)});
    trainers_.progress_socket = socket;
    Json told = Json::array();
    for (std::size_t phase = 0; phase < nodes_.size(); ++phase) {
      const auto ordered = Clock::now();
      if (auto changed = change(nodes_[phase]); !changed) return tl::unexpected(changed.error());
      auto lived = live_through(phase, ordered);
      if (!lived) return lived;
      options_.tell(lived->dump());
      told.push_back(*lived);
    }
    for (auto began = Clock::now(); cluster_->trainers_running(); std::this_thread::sleep_for(kRoundPoll)) {
      look();
      if (const auto failed = failure()) return fail(ErrorCode::kUnavailable, *failed);
      if (seconds_between(began, Clock::now()) > static_cast<double>(kRoundPatience.count())) {
        return fail(ErrorCode::kTimeout, "the trainers do not end; see the logs in " + cluster_->log_dir());
      }
    }
    look();
    return conclude(std::move(told));
  }

  // Nodes join, or the last ones leave.
  Status change(std::uint32_t to) {
    const std::uint32_t from = std::exchange(there_, to);
    for (std::uint32_t node = to; node < from; ++node) cluster_->workers()[node].process.send_signal(SIGTERM);
    trainers_.nodes.clear();
    for (std::uint32_t node = from; node < to; ++node) {
      if (node >= seen_) {
        trainers_.nodes.push_back(node);
      } else if (auto back = bring_back(node); !back) {
        return back;
      }
    }
    seen_ = std::max(seen_, to);
    if (trainers_.nodes.empty()) return {};
    trainers_.world_nodes = from == 0 ? to : static_cast<std::uint32_t>(cluster_->workers().size());
    return cluster_->start_trainers(trainers_);
  }

  // A node that left: its worker, and its trainers.
  Status bring_back(std::uint32_t node) {
    Daemon& worker = cluster_->workers()[node];
    const std::uint32_t first = node * options_.ranks_per_node;
    if (!worker.process.wait(kRoundPatience)) return fail(ErrorCode::kTimeout, worker.name + " does not end");
    if (auto ok = cluster_->restart(worker); !ok) return ok;
    for (std::uint32_t rank = first; rank < first + options_.ranks_per_node; ++rank) {
      // Started node by node, in their order.
      if (!cluster_->trainers().at(rank).process.wait(kRoundPatience)) {
        return fail(ErrorCode::kTimeout, "the trainer of rank " + std::to_string(rank) + " does not end");
      }
      if (auto ok = cluster_->restart_trainer(rank); !ok) return ok;
    }
    return {};
  }

  // Until this phase's share of the rounds is through; the last one to the end.
  Result<Json> live_through(std::size_t phase, Clock::time_point ordered) {
    const std::uint32_t world = nodes_[phase] * options_.ranks_per_node;
    std::optional<Clock::time_point> first;
    std::uint64_t first_round = 0;
    Clock::time_point heard = Clock::now();
    while (true) {
      const auto newest = look();
      const auto now = Clock::now();
      if (newest) heard = now;
      if (newest && newest->world_size != world && newest->round >= newest->rounds) {
        return fail(ErrorCode::kInvalidArgument, "the job was through before its " + std::to_string(nodes_[phase]) +
                                                     " nodes took part; give it more rounds, or slower ones");
      }
      if (newest && newest->world_size == world && newest->complete > newest->resumed) {
        if (!first) first = now, first_round = newest->complete;
        const std::uint64_t until = newest->rounds * (phase + 1) / nodes_.size();
        if (newest->complete >= until) {
          const double seconds = seconds_between(*first, now);
          const auto samples = static_cast<double>(coverage_.samples(first_round, newest->complete));
          return Json{{"nodes", nodes_[phase]},
                      {"world_size", world},
                      {"rounds", newest->complete - first_round},
                      {"seconds", seconds},
                      {"samples_per_s", seconds > 0 ? samples / seconds : 0.0},
                      {"first_round_after_s", seconds_between(ordered, *first)}};
        }
      }
      if (options_.interrupted()) return fail(ErrorCode::kStopped, "interrupted");
      if (const auto failed = failure()) return fail(ErrorCode::kUnavailable, *failed);
      if (now - heard > kRoundPatience) {
        return fail(ErrorCode::kTimeout, "no rank told of a round within " + std::to_string(kRoundPatience.count()) +
                                             " s; see the logs in " + cluster_->log_dir());
      }
      std::this_thread::sleep_for(kRoundPoll);
    }
  }

  // The newest round that was reported since the last look.
  std::optional<ProgressReport> look() {
    std::optional<ProgressReport> newest;
    progress_->drain([&](std::string_view datagram) {
      const auto report = parse_progress(datagram);
      if (!report) return;
      coverage_.take(*report);
      if (!newest || report->round >= newest->round) newest = report;
    });
    return newest;
  }

  // Workers and trainers of nodes that left may end; what ends otherwise ends badly.
  std::optional<std::string> failure() {
    const auto ended = [](Daemon& daemon) {
      return daemon.name + " ended:\n" + last_lines(daemon.log_file, LocalCluster::kReportedLogLines, daemon.log_from);
    };
    for (Daemon& server : cluster_->servers()) {
      if (!server.process.running()) return ended(server);
    }
    for (std::uint32_t node = 0; node < there_; ++node) {
      if (Daemon& worker = cluster_->workers()[node]; !worker.process.running()) return ended(worker);
    }
    for (Trainer& trainer : cluster_->trainers()) {
      const auto status = trainer.process.poll();
      if (status && !status->ok() && status->code != kExitStopped) {
        return "the trainer of rank " + std::to_string(trainer.rank) + " ended:\n" +
               last_lines(trainer.log_file, LocalCluster::kReportedLogLines, trainer.log_from);
      }
    }
    return {};
  }

  Result<Json> conclude(Json told) {
    Json accuracy;
    std::optional<std::string> digest;
    std::uint64_t rounds = 0;
    for (const Trainer& trainer : cluster_->trainers()) {
      const auto parsed = parsed_result(trainer);
      if (!parsed) return tl::unexpected(parsed.error());
      const Json& result = *parsed;
      if (result.at("stopped").get<bool>()) continue;  // of a node that left
      const auto ended = result.at("digest").get<std::string>();
      if (digest.value_or(ended) != ended) {
        return fail(ErrorCode::kInternal, "ranks ended with different parameters");
      }
      digest = ended;
      rounds = result.at("rounds");
      if (!result.at("test_accuracy").is_null()) accuracy = result.at("test_accuracy");
    }
    return Json{
        {"phases", std::move(told)}, {"rounds", rounds}, {"test_accuracy", accuracy}, {"coverage", coverage_.counts()}};
  }

  const ElasticOptions& options_;
  const std::vector<std::uint32_t> nodes_;
  const std::string folder_;
  std::unique_ptr<LocalCluster> cluster_;
  std::optional<ProgressSocket> progress_;
  TrainerOptions trainers_;
  ElasticCoverage coverage_;
  std::uint32_t there_ = 0;  // nodes that take part: the first ones
  std::uint32_t seen_ = 0;   // nodes that ever did
};

// {phases: [{nodes, world_size, rounds, seconds, samples_per_s, first_round_after_s}], rounds, test_accuracy,
//  coverage: {rounds_whole, rounds_wrong, rounds_seen, rounds_dealt_twice} (bench/elastic_coverage.h),
//  fixed: {nodes, test_accuracy, samples_per_s} or null}
// first_round_after_s: from the order to join or leave until a rank of the view with the new nodes holds the first
// round that this view completed, and has computed the next gradient from it.
// kInvalidArgument: fewer than one phase or node. kUnavailable: a process ended that should not have.
Result<Json> run_elastic(const ElasticOptions& options) {
  if (options.nodes.empty() || std::ranges::find(options.nodes, 0u) != options.nodes.end()) {
    return fail(ErrorCode::kInvalidArgument, "every phase needs at least one node, as in --nodes 2,4,3");
  }
  const auto sampler = whole_sampler(options);
  if (!sampler) return tl::unexpected(sampler.error());
  auto result = Run(options, options.nodes, "elastic", *sampler).run();
  if (!result) return result;
  (*result)["fixed"] = nullptr;
  if (options.only) return result;
  options.tell("now with " + std::to_string(options.nodes.front()) + " nodes from beginning to end");
  const auto fixed = Run(options, {options.nodes.front()}, "fixed", *sampler).run();
  if (!fixed) return fixed;
  (*result)["fixed"] = {{"nodes", options.nodes.front()},
                        {"test_accuracy", fixed->at("test_accuracy")},
                        {"samples_per_s", fixed->at("phases").at(0).at("samples_per_s")}};
  return result;
}

}  // namespace

Measurement elastic() {
  const auto add = [](CliCommand command, ElasticOptions& o) {
    command.add_option("job", o.job_file, "job file (TOML)")->required()->type_name("JOB.toml");
    add_overrides(command, o.overrides);
    command.add_option("--nodes", o.nodes, "of each phase")->delimiter(',')->capture_default_str();
    command.add_option("--servers", o.servers)->capture_default_str();
    command.add_option("--ranks-per-node", o.ranks_per_node)->capture_default_str();
    add_transport(command, o.transport);
    command.add_option("--us-per-sample", o.us_per_sample, "that every sample takes more, asleep: a slower computer")
        ->capture_default_str();
    command.add_option("--base-dir", o.base_dir, "where stores and logs go")->required()->type_name("DIR");
    command.add_flag("--only", o.only, "without the run with a fixed number of nodes");
  };
  return {
      .name = "elastic",
      .summary = "nodes that join and leave while a job trains",
      .words =
          R"(Trains the job with as many nodes as the first number says; when its share of the rounds is through, nodes join or leave while training
goes on, as the next number says. Nodes leave by SIGTERM to their worker. Real daemons and trainers on this machine.

Fields: phases (nodes, rounds, samples_per_s, first_round_after_s: from the order to join or leave until a rank holds
the first round that the new nodes completed), test_accuracy, coverage (rounds_whole: rounds in which the ranks of one view computed, as they told, just
the samples that the round has, each once; rounds_wrong: others; rounds_seen: of which anything was told; rounds_dealt_twice: open when the nodes
changed), fixed (the same job with the first number of nodes throughout).)",
      .stops = true,
      .add = measures<ElasticOptions>(add, [](ElasticOptions& options, MeasurementRun& run) {
        options.interrupted = run.interrupted;
        options.tell = run.tell;
        return yield(run, run_elastic(options));
      })};
}

}  // namespace tributary::bench

#include "bench/elastic.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "cluster/progress_socket.h"

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kPoll{1};
constexpr std::chrono::seconds kPatience{120};  // without any new round

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What ranks have told of the rounds, by the number of ranks in their view.
class Rounds {
 public:
  struct Told {
    std::uint64_t round = 0, last = 0;
    std::uint32_t world = 0;
  };

  std::optional<Told> take(std::string_view datagram) {
    const auto json = nlohmann::json::parse(datagram, nullptr, false);
    if (!json.is_object() || !json.contains("world_size")) return {};
    const Told told{json.at("round"), json.at("rounds"), json.at("world_size")};
    const auto rank = json.at("rank").get<std::uint32_t>();
    const auto samples = json.at("samples").get<std::uint64_t>();
    seen_[told.round][told.world][rank] = samples;
    batches_[told.round] = json.at("global_samples");
    return told;
  }

  // Every round's samples are those of its batch, dealt to the ranks of a view without a gap. (What ranks tell can be
  // lost on the way, so there may be rounds of which nothing can be said.)
  Json coverage() const {
    std::uint64_t whole = 0, twice = 0;
    for (const auto& [round, by_world] : seen_) {
      const bool complete = std::ranges::any_of(by_world, [&, r = round](const auto& view) {
        std::uint64_t samples = 0;
        for (const auto& [rank, count] : view.second) samples += count;
        return view.second.size() == view.first && samples == batches_.at(r);
      });
      whole += complete ? 1 : 0;
      twice += by_world.size() > 1 ? 1 : 0;
    }
    return {{"rounds_whole", whole}, {"rounds_seen", seen_.size()}, {"rounds_dealt_twice", twice}};
  }

  std::uint64_t samples(std::uint64_t after, std::uint64_t to) const {
    std::uint64_t sum = 0;
    for (auto at = batches_.upper_bound(after); at != batches_.end() && at->first <= to; ++at) sum += at->second;
    return sum;
  }

 private:
  std::map<std::uint64_t, std::map<std::uint32_t, std::map<std::uint32_t, std::uint64_t>>> seen_;
  std::map<std::uint64_t, std::uint64_t> batches_;  // samples of a round
};

class Run {
 public:
  Run(const ElasticOptions& options, std::vector<std::uint32_t> nodes, std::string folder)
      : options_(options), nodes_(std::move(nodes)), folder_(std::move(folder)) {}

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
    trainers_.job_file = std::filesystem::absolute(options_.job_file).string();
    trainers_.overrides = options_.overrides;
    trainers_.overrides.push_back("membership.on_worker_loss=continue");
    trainers_.progress_socket = socket;
    trainers_.extra_arguments = {"--json",
                                 "--quiet",
                                 "--device",
                                 options_.device,
                                 "--slow-us-per-sample",
                                 std::to_string(options_.us_per_sample)};
    Json told = Json::array();
    std::uint32_t there = 0;
    for (std::size_t phase = 0; phase < nodes_.size(); ++phase) {
      const auto ordered = Clock::now();
      if (auto changed = change(there, nodes_[phase]); !changed) return tl::unexpected(changed.error());
      there = nodes_[phase];
      auto lived = live_through(phase, ordered);
      if (!lived) return lived;
      options_.tell(lived->dump());
      told.push_back(*lived);
    }
    for (auto began = Clock::now(); cluster_->trainers_running(); std::this_thread::sleep_for(kPoll)) {
      look();
      if (seconds_between(began, Clock::now()) > static_cast<double>(kPatience.count())) {
        return fail(ErrorCode::kTimeout, "the trainers do not end; see the logs in " + cluster_->log_dir());
      }
    }
    look();
    return conclude(std::move(told));
  }

  // Nodes join, or the last ones leave.
  Status change(std::uint32_t from, std::uint32_t to) {
    if (to < from) {
      for (std::uint32_t node = to; node < from; ++node) cluster_->workers()[node].process.send_signal(SIGTERM);
      return {};
    }
    trainers_.nodes.clear();
    for (std::uint32_t node = from; node < to; ++node) trainers_.nodes.push_back(node);
    trainers_.world_nodes = from == 0 ? to : static_cast<std::uint32_t>(cluster_->workers().size());
    return cluster_->start_trainers(trainers_);
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
      if (newest && newest->world != world && newest->round >= newest->last) {
        return fail(ErrorCode::kInvalidArgument, "the job was through before its " + std::to_string(nodes_[phase]) +
                                                     " nodes took part; give it more rounds, or slower ones");
      }
      if (newest && newest->world == world) {
        if (!first) first = now, first_round = newest->round;
        const std::uint64_t until = newest->last * (phase + 1) / nodes_.size();
        if (newest->round >= until) {
          const double seconds = seconds_between(*first, now);
          const auto samples = static_cast<double>(rounds_.samples(first_round, newest->round));
          return Json{{"nodes", nodes_[phase]},
                      {"world_size", world},
                      {"rounds", newest->round - first_round},
                      {"seconds", seconds},
                      {"samples_per_s", seconds > 0 ? samples / seconds : 0.0},
                      {"first_round_after_s", seconds_between(ordered, *first)}};
        }
      }
      if (options_.interrupted()) return fail(ErrorCode::kStopped, "interrupted");
      if (const auto failed = failure()) return fail(ErrorCode::kUnavailable, *failed);
      if (now - heard > kPatience) {
        return fail(ErrorCode::kTimeout, "no round was completed within " + std::to_string(kPatience.count()) +
                                             " s; see the logs in " + cluster_->log_dir());
      }
      std::this_thread::sleep_for(kPoll);
    }
  }

  // The newest round that was told of since the last look.
  std::optional<Rounds::Told> look() {
    std::optional<Rounds::Told> newest;
    progress_->drain([&](std::string_view datagram) {
      const auto told = rounds_.take(datagram);
      if (told && (!newest || told->round >= newest->round)) newest = told;
    });
    return newest;
  }

  // Workers and trainers of nodes that left may end; what ends otherwise ends badly.
  std::optional<std::string> failure() {
    for (Daemon& server : cluster_->servers()) {
      if (!server.process.running()) {
        return server.name + " ended:\n" + last_lines(server.log_file, LocalCluster::kReportedLogLines);
      }
    }
    for (Trainer& trainer : cluster_->trainers()) {
      const auto status = trainer.process.poll();
      if (status && !status->ok()) {
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
      const std::string line = trainer_result(trainer);
      if (line.empty()) {
        return fail(ErrorCode::kUnavailable,
                    "rank " + std::to_string(trainer.rank) + " left no result:\n" +
                        last_lines(trainer.log_file, LocalCluster::kReportedLogLines, trainer.log_from));
      }
      const Json result = Json::parse(line);
      if (result.at("stopped").get<bool>()) continue;  // of a node that left
      if (digest.value_or(result.at("digest")) != result.at("digest")) {
        return fail(ErrorCode::kInternal, "ranks ended with different parameters");
      }
      digest = result.at("digest");
      rounds = result.at("rounds");
      if (!result.at("test_accuracy").is_null()) accuracy = result.at("test_accuracy");
    }
    return Json{
        {"phases", std::move(told)}, {"rounds", rounds}, {"test_accuracy", accuracy}, {"coverage", rounds_.coverage()}};
  }

  const ElasticOptions& options_;
  const std::vector<std::uint32_t> nodes_;
  const std::string folder_;
  std::unique_ptr<LocalCluster> cluster_;
  std::optional<ProgressSocket> progress_;
  TrainerOptions trainers_;
  Rounds rounds_;
};

}  // namespace

Result<Json> run_elastic(const ElasticOptions& options) {
  if (options.nodes.empty() || std::ranges::find(options.nodes, 0u) != options.nodes.end()) {
    return fail(ErrorCode::kInvalidArgument, "every phase needs at least one node, as in --nodes 2,4,3");
  }
  auto result = Run(options, options.nodes, "elastic").run();
  if (!result) return result;
  (*result)["fixed"] = nullptr;
  if (!options.fixed) return result;
  options.tell("now with " + std::to_string(options.nodes.front()) + " nodes from beginning to end");
  const auto fixed = Run(options, {options.nodes.front()}, "fixed").run();
  if (!fixed) return fixed;
  (*result)["fixed"] = {{"nodes", options.nodes.front()},
                        {"test_accuracy", fixed->at("test_accuracy")},
                        {"samples_per_s", fixed->at("phases").at(0).at("samples_per_s")}};
  return result;
}

}  // namespace tributary::bench

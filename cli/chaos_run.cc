#include "cli/chaos_run.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "cli/run_summary.h"
#include "cluster/progress_socket.h"
#include "common/config_toml.h"
#include "common/printed.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{1};
constexpr std::chrono::seconds kPatience{90};  // for the next round, and for all ranks to end
constexpr std::uint64_t kRoundsBefore = 5;     // complete before the first kill

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A cluster with trainers whose rounds are watched.
class Watched {
 public:
  static Result<Watched> start(const ChaosOptions& options, const std::string& folder, std::uint64_t max_rounds) {
    ClusterOptions cluster_options = options.cluster;
    cluster_options.base_dir = options.cluster.base_dir + "/" + folder;
    cluster_options.fresh = true;
    auto cluster = LocalCluster::start(cluster_options);
    if (!cluster) return tl::unexpected(cluster.error());
    const std::string socket = (*cluster)->socket_dir() + "/progress.sock";
    auto progress = ProgressSocket::listen(socket);
    if (!progress) return tl::unexpected(progress.error());
    std::vector<std::string> overrides = options.overrides;
    // As long as there is somebody to kill; the calm run as long as that one was.
    overrides.push_back("train.epochs=1000000");
    overrides.push_back("train.eval_every_epochs=1000000");
    overrides.push_back("train.max_rounds=" + std::to_string(max_rounds));
    if (auto ok = (*cluster)->start_trainers({.program = {},
                                              .job_file = std::filesystem::absolute(options.job_file).string(),
                                              .overrides = overrides,
                                              .progress_socket = socket,
                                              .extra_arguments = {"--json", "--quiet", "--device", "cpu"}});
        !ok)
      return tl::unexpected(ok.error());
    return Watched(std::move(*cluster), std::move(*progress));
  }

  LocalCluster& cluster() { return *cluster_; }
  // The highest round that a rank has told of since the last look; nothing if none has.
  std::optional<std::uint64_t> look() {
    std::optional<std::uint64_t> newest;
    progress_.drain([&](std::string_view datagram) {
      const auto json = nlohmann::json::parse(datagram, nullptr, false);
      if (!json.is_object() || !json.contains("round") || !json.at("round").is_number_unsigned()) return;
      newest = std::max(newest.value_or(0), json.at("round").get<std::uint64_t>());
    });
    return newest;
  }
  // Until some rank has told of a round of at least `round`.
  Result<std::uint64_t> wait_for(std::uint64_t round, const std::function<bool()>& interrupted) {
    const auto began = Clock::now();
    while (Clock::now() - began < kPatience) {
      if (const auto seen = look(); seen && *seen >= round) return *seen;
      if (const auto failed = lost_trainer()) return fail(ErrorCode::kUnavailable, *failed);
      if (interrupted()) return fail(ErrorCode::kStopped, "interrupted");
      std::this_thread::sleep_for(kPoll);
    }
    return fail(ErrorCode::kUnavailable, "no round was completed within " + std::to_string(kPatience.count()) +
                                             " s; see the logs in " + cluster_->log_dir());
  }
  // Trainers are never killed: one that has ended has given up.
  std::optional<std::string> lost_trainer() {
    for (Trainer& trainer : cluster_->trainers()) {
      if (!trainer.process.running()) {
        return "the trainer of rank " + std::to_string(trainer.rank) + " ended:\n" +
               last_lines(trainer.log_file, LocalCluster::kReportedLogLines, trainer.log_from);
      }
    }
    return {};
  }

 private:
  Watched(std::unique_ptr<LocalCluster> cluster, ProgressSocket progress)
      : cluster_(std::move(cluster)), progress_(std::move(progress)) {}

  std::unique_ptr<LocalCluster> cluster_;
  ProgressSocket progress_;
};

class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options) : options_(options), random_(options.seed) {}

  Result<Json> run() {
    auto storm = Watched::start(options_, "chaos", 0);
    if (!storm) return tl::unexpected(storm.error());
    auto reached = storm->wait_for(kRoundsBefore, options_.interrupted);
    std::uint32_t killed = 0;
    while (reached && killed < options_.kills) {
      reached = strike(*storm, *reached, killed);
    }
    if (!reached) {
      storm->cluster().stop_now();
      return tl::unexpected(reached.error());
    }
    auto summary = conclude(*storm);
    if (!summary) return summary;
    const auto rounds = summary->at("rounds").get<std::uint64_t>();
    options_.tell("stopped after round " + std::to_string(rounds) + "; now a calm run of as many");
    auto calm = Watched::start(options_, "calm", rounds);
    if (!calm) return tl::unexpected(calm.error());
    if (auto ended = wait_for_end(*calm); !ended) {
      calm->cluster().stop_now();
      return tl::unexpected(ended.error());
    }
    auto expected = conclude(*calm);
    if (!expected) return expected;
    return result(killed, *summary, *expected);
  }

 private:
  // Kills some, starts them again, and waits for the next round.
  Result<std::uint64_t> strike(Watched& watched, std::uint64_t reached, std::uint32_t& killed) {
    std::exponential_distribution<double> pause(1.0 / options_.calm_seconds);
    const auto until =
        Clock::now() + std::chrono::duration<double>(std::min(pause(random_), 5.0 * options_.calm_seconds));
    while (Clock::now() < until && !options_.interrupted()) {
      if (const auto seen = watched.look()) reached = std::max(reached, *seen);
      std::this_thread::sleep_for(kPoll);
    }
    const std::vector<Daemon*> victims = choose(watched.cluster());
    for (Daemon* victim : victims) victim->process.send_signal(SIGKILL);
    Json names = Json::array();
    for (Daemon* victim : victims) {
      victim->process.wait(std::chrono::milliseconds(kPatience));
      names.push_back(victim->name);
    }
    if (const auto seen = watched.look()) reached = std::max(reached, *seen);
    const auto dead = Clock::now();
    for (Daemon* victim : victims) {
      if (auto ok = watched.cluster().restart(*victim); !ok) return tl::unexpected(ok.error());
    }
    const double restarted = seconds_since(dead);
    const auto back = Clock::now();
    const std::optional<std::uint64_t> meanwhile = watched.look();  // others may have gone on without them
    const auto next = meanwhile && *meanwhile > reached ? Result<std::uint64_t>(*meanwhile)
                                                        : watched.wait_for(1, options_.interrupted);
    if (!next) return next;
    const double recovered = seconds_since(back);
    killed += static_cast<std::uint32_t>(victims.size());
    const std::uint64_t again = *next <= reached ? reached - *next + 1 : 0;
    options_.tell(printed("%u of %u: killed %s at round %llu; ready again after %.2f s, next round %.2f s later%s",
                          killed, options_.kills, names.dump().c_str(), static_cast<unsigned long long>(reached),
                          restarted, recovered,
                          again == 0 ? "" : printed(", %llu again", static_cast<unsigned long long>(again)).c_str()));
    strikes_.push_back({{"at_round", reached},
                        {"killed", std::move(names)},
                        {"restarted_s", restarted},
                        {"recovered_s", recovered},
                        {"recomputed", again}});
    return std::max(reached, *next);
  }

  std::vector<Daemon*> choose(LocalCluster& cluster) {
    std::vector<Daemon*> all;
    for (Daemon& daemon : cluster.servers()) all.push_back(&daemon);
    for (Daemon& daemon : cluster.workers()) all.push_back(&daemon);
    std::ranges::shuffle(all, random_);
    std::size_t count = 1;
    if (std::bernoulli_distribution(options_.several)(random_))
      count = std::uniform_int_distribution<std::size_t>(2, std::max<std::size_t>(2, all.size()))(random_);
    all.resize(std::min(count, all.size()));
    return all;
  }

  Status wait_for_end(Watched& watched) {
    while (!watched.cluster().wait_for_trainers(std::chrono::milliseconds(200))) {
      watched.look();
      if (const auto failure = watched.cluster().failure()) return fail(ErrorCode::kUnavailable, *failure);
      if (options_.interrupted()) return fail(ErrorCode::kStopped, "interrupted");
    }
    return {};
  }

  Result<Json> conclude(Watched& watched) {
    auto servers = server_usage(watched.cluster());
    const std::vector<std::string> late = watched.cluster().stop();
    if (!late.empty()) {
      return fail(ErrorCode::kTimeout,
                  late.front() + " did not stop in time; see the logs in " + watched.cluster().log_dir());
    }
    return summarise(watched.cluster(), std::move(servers));
  }

  Json result(std::uint32_t killed, const Json& summary, const Json& calm) const {
    std::vector<double> times;
    for (const Json& strike : strikes_) times.push_back(strike.at("recovered_s").get<double>());
    std::ranges::sort(times);
    const Json recovered = {{"median", times.empty() ? 0.0 : times[times.size() / 2]},
                            {"max", times.empty() ? 0.0 : times.back()}};
    const bool same = summary.at("digest") == calm.at("digest") && summary.at("rounds") == calm.at("rounds");
    return {{"job", options_.job_file},
            {"seed", options_.seed},
            {"kills", killed},
            {"strikes", strikes_},
            {"recovered_s", recovered},
            {"rounds", summary.at("rounds")},
            {"digest", summary.at("digest")},
            {"calm_digest", calm.at("digest")},
            {"same", same}};
  }

  const ChaosOptions& options_;
  std::mt19937_64 random_;
  Json strikes_ = Json::array();
};

}  // namespace

Result<Json> run_chaos(const ChaosOptions& options) {
  const auto job = load_job_config(options.job_file, options.overrides);
  if (!job) return tl::unexpected(job.error());
  if (has_backups(*job) || has_deadline(*job)) {
    return fail(ErrorCode::kInvalidArgument,
                "job '" + job->name +
                    "' has backup workers or a deadline, so that no two runs end in the same bits; set "
                    "sync.backup_workers=0 and sync.deadline_ms=0");
  }
  if (job->mode != "sync") {
    return fail(ErrorCode::kInvalidArgument,
                "job '" + job->name + "' has mode \"" + job->mode +
                    "\"; only mode \"sync\" must end in the bits of a calm run (set job.mode=sync)");
  }
  return Chaos(options).run();
}

}  // namespace tributary::cli

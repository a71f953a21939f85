#include "tools/cli/run/chaos_run.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/printed.h"
#include "common/config/config_toml.h"
#include "common/math/median.h"
#include "tools/cli/run/job_watch.h"
#include "tools/cli/run/run_summary.h"
#include "tools/cli/run/strike_watch.h"
#include "tools/cluster/progress_socket.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRunPoll{1};
constexpr std::chrono::seconds kPatience{90};  // without any report of a rank, or a recovery
constexpr std::uint64_t kRoundsBefore = 5;     // complete before the first kill
constexpr std::uint32_t kLostAfterMs = 2000;   // where the coordinator is to move

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
    // Trains as long as there are processes to kill; the calm run for as many rounds.
    overrides.push_back("train.epochs=1000000");
    overrides.push_back("train.eval_every_epochs=1000000");
    overrides.push_back("train.max_rounds=" + std::to_string(max_rounds));
    // All servers are on this machine.
    if (options.lose_disks + options.lose_coordinators != 0) overrides.push_back("snapshot.copies=2");
    if (auto ok = (*cluster)->start_trainers(
            {.command = (*cluster)->train_command(std::filesystem::absolute(options.job_file).string(), overrides,
                                                  {"--json", "--quiet"}),
             .progress_socket = socket});
        !ok)
      return tl::unexpected(ok.error());
    return Watched(std::move(*cluster), std::move(*progress));
  }

  LocalCluster& cluster() { return *cluster_; }
  // Takes the ranks' reports since the last look; returns whether there were any.
  bool look() {
    bool told = false;
    progress_.drain([&](std::string_view datagram) {
      const auto report = parse_progress(datagram);
      if (!report) return;
      told = true;
      watch_.take(*report);
    });
    return told;
  }
  StrikeWatch& watch() { return watch_; }
  // Looks until `done`. what: for the error, what did not come.
  Status wait_for(const std::function<bool()>& done, const char* what, const std::function<bool()>& interrupted) {
    const auto began = Clock::now();
    while (Clock::now() - began < kPatience) {
      look();
      if (done()) return {};
      if (const auto failed = lost_trainer()) return fail(ErrorCode::kUnavailable, *failed);
      if (interrupted()) return fail(ErrorCode::kStopped, "interrupted");
      std::this_thread::sleep_for(kRunPoll);
    }
    return fail(ErrorCode::kUnavailable, std::string(what) + " within " + std::to_string(kPatience.count()) +
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
      : cluster_(std::move(cluster)),
        progress_(std::move(progress)),
        watch_(static_cast<std::uint32_t>(cluster_->trainers().size())) {}

  std::unique_ptr<LocalCluster> cluster_;
  ProgressSocket progress_;
  StrikeWatch watch_;
};

class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options) : options_(options), random_(options.seed) {}

  Result<Json> run() {
    auto storm = Watched::start(options_, "chaos", 0);
    if (!storm) return tl::unexpected(storm.error());
    Status going = storm->wait_for([&] { return storm->watch().complete() >= kRoundsBefore; },
                                   "the first rounds were not completed", options_.interrupted);
    std::uint32_t killed = 0;
    while (going && killed < options_.kills) going = strike(*storm, killed);
    if (!going) {
      storm->cluster().stop_now();
      return tl::unexpected(going.error());
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
  // Kills some, starts them again, and waits until every rank has seen a round completed after that.
  Status strike(Watched& watched, std::uint32_t& killed) {
    StrikeWatch& watch = watched.watch();
    std::exponential_distribution<double> pause(1.0 / options_.calm_seconds);
    const auto until =
        Clock::now() + std::chrono::duration<double>(std::min(pause(random_), 5.0 * options_.calm_seconds));
    while (Clock::now() < until && !options_.interrupted()) {
      watched.look();
      std::this_thread::sleep_for(kRunPoll);
    }
    const bool loses_coordinator = is_due(killed, lost_coordinators_, options_.lose_coordinators);
    const bool loses_disk = loses_coordinator || is_due(killed, lost_disks_, options_.lose_disks);
    if (loses_disk) {
      // A disk is lost while another server has a copy of all that is on it.
      if (auto ok = watched.wait_for([&] { return copies(watched.cluster()) >= 2; }, "no snapshot was on two servers",
                                     options_.interrupted);
          !ok)
        return ok;
    }
    const std::vector<Daemon*> victims = loses_coordinator ? std::vector{&watched.cluster().coordinator_daemon()}
                                         : loses_disk      ? choose_server(watched.cluster())
                                                           : choose(watched.cluster());
    watched.look();
    watch.strike();
    const auto dead = Clock::now();
    for (Daemon* victim : victims) victim->process.send_signal(SIGKILL);
    Json names = Json::array();
    for (Daemon* victim : victims) {
      victim->process.wait(std::chrono::milliseconds(kPatience));
      names.push_back(victim->name);
    }
    if (loses_disk) {
      ++(loses_coordinator ? lost_coordinators_ : lost_disks_);
      std::filesystem::remove_all(
          watched.cluster().store_dir(static_cast<std::size_t>(victims.front() - watched.cluster().servers().data())));
    }
    // Its machine is lost: another one has its index when the coordinator has moved.
    if (loses_coordinator) {
      const auto moved = [&] {
        return std::ranges::any_of(watched.cluster().servers(), [&](const Daemon& server) {
          return &server != victims.front() && LocalCluster::has_coordinator(server);
        });
      };
      if (auto ok = watched.wait_for(moved, "no other server took the coordinator", options_.interrupted); !ok)
        return ok;
    }
    // The coordinator first: the others are ready when it knows them.
    std::vector<Daemon*> order = victims;
    std::ranges::stable_partition(order, [&](Daemon* d) { return d == &watched.cluster().coordinator_daemon(); });
    for (Daemon* victim : order) {
      if (auto ok = watched.cluster().restart(*victim); !ok) return ok;
    }
    const double restarted = seconds_since(dead);
    const auto ready = Clock::now();
    const char* what = "after a kill no round was completed";
    if (auto ok = watched.wait_for([&] { return watch.back(); }, what, options_.interrupted); !ok) return ok;
    const double recovered = seconds_since(ready);
    // The ranks' reports until then separate the next strike from this one.
    const char* all = "after a kill not every rank saw a round completed";
    if (auto ok = watched.wait_for([&] { return watch.all_back(); }, all, options_.interrupted); !ok) return ok;
    killed += static_cast<std::uint32_t>(victims.size());
    const std::uint64_t at_round = watch.complete_before(), again = watch.recomputed();
    options_.tell(
        printed("%u of %u: killed %s%s after round %llu; ready again after %.2f s, a round completed %.2f s later%s",
                killed, options_.kills, names.dump().c_str(),
                loses_coordinator ? ", the coordinator, for good, with its store"
                : loses_disk      ? " and deleted its store"
                                  : "",
                static_cast<unsigned long long>(at_round), restarted, recovered,
                again == 0 ? "" : printed(", %llu again", static_cast<unsigned long long>(again)).c_str()));
    strikes_.push_back({{"at_round", at_round},
                        {"killed", std::move(names)},
                        {"lost_disk", loses_disk},
                        {"lost_coordinator", loses_coordinator},
                        {"restarted_s", restarted},
                        {"recovered_s", recovered},
                        {"recomputed", again}});
    return {};
  }

  // Strikes that lose a disk, or a machine, are spread among all.
  bool is_due(std::uint32_t killed, std::uint32_t lost, std::uint32_t wanted) const {
    return lost < wanted && std::uint64_t{killed} * wanted >= std::uint64_t{lost} * options_.kills;
  }

  std::vector<Daemon*> choose_server(LocalCluster& cluster) {
    std::vector<Daemon>& servers = cluster.servers();
    return {&servers[std::uniform_int_distribution<std::size_t>(0, servers.size() - 1)(random_)]};
  }

  // Servers that have each part of the job's newest snapshot; 0: it has none, or nobody answers.
  static std::uint64_t copies(LocalCluster& cluster) {
    const Json jobs = cluster_jobs(cluster);
    return jobs.empty() ? 0 : jobs.at(0).value("copies", std::uint64_t{0});
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
    auto heard = Clock::now();
    while (!watched.cluster().wait_for_trainers(std::chrono::milliseconds(200))) {
      if (watched.look()) heard = Clock::now();
      if (const auto failure = watched.cluster().failure()) return fail(ErrorCode::kUnavailable, *failure);
      if (options_.interrupted()) return fail(ErrorCode::kStopped, "interrupted");
      if (Clock::now() - heard > kPatience) {
        return fail(ErrorCode::kTimeout, "no rank of the calm run told of a round, or ended, within " +
                                             std::to_string(kPatience.count()) + " s; see the logs in " +
                                             watched.cluster().log_dir());
      }
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
    const double longest = times.empty() ? 0.0 : *std::ranges::max_element(times);
    const Json recovered = {{"median", median(std::move(times))}, {"max", longest}};
    const bool same = summary.at("digest") == calm.at("digest") && summary.at("rounds") == calm.at("rounds");
    return {{"job", options_.job_file},
            {"seed", options_.seed},
            {"kills", killed},
            {"lost_disks", lost_disks_},
            {"lost_coordinators", lost_coordinators_},
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
  std::uint32_t lost_disks_ = 0, lost_coordinators_ = 0;
};

}  // namespace

Result<Json> run_chaos(const ChaosOptions& options) {
  const auto job = load_job_config(options.job_file, options.overrides);
  if (!job) return tl::unexpected(job.error());
  if (has_deadline(*job)) {
    return fail(
        ErrorCode::kInvalidArgument,
        "job '" + job->name + "' has a deadline, so that no two runs end in the same bits; set sync.deadline_ms=0");
  }
  if (options.lose_disks + options.lose_coordinators != 0 && options.cluster.servers < 2) {
    return fail(ErrorCode::kInvalidArgument,
                "--lose-disks and --lose-coordinators need two servers or more: the other one has the copies");
  }
  if (job->mode != Mode::kSync) {
    return fail(ErrorCode::kInvalidArgument,
                "job '" + job->name + "' has mode \"" + word(job->mode) +
                    "\"; only mode \"sync\" must end in the bits of a calm run (set job.mode=sync)");
  }
  ChaosOptions all = options;
  if (all.lose_coordinators != 0) {
    all.cluster.coordinators = 2;
    all.cluster.peer_timeout_ms = kLostAfterMs;
  }
  return Chaos(all).run();
}

}  // namespace tributary::cli

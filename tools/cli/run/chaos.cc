// `tributary chaos`: trains on a local cluster, kills daemons at random moments, starts them again, and compares the
// parameters with those of a calm run of as many rounds.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/printed.h"
#include "common/base/result.h"
#include "common/config/config_toml.h"
#include "common/math/median.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/stop_signals.h"
#include "tools/cli/run/job_watch.h"
#include "tools/cli/run/run_summary.h"
#include "tools/cli/run/strike_watch.h"
#include "tools/cluster/local_cluster.h"
#include "tools/cluster/progress_socket.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kChaosFooter = R"(
Trains the job on a cluster on this machine and kills servers and workers with SIGKILL at random moments, one or several at once, server 0 among them;
each is started again at once. Then the job is stopped cleanly, and a calm run of as many rounds must end in the same parameters, to the bit.
With --lose-disks some strikes kill one server and delete its store, once another server has a copy of all that is on it (docs/copies.md).
The job's own length does not matter. The seed decides who is killed and when; what they were doing at that moment it cannot decide.

With --lose-coordinators two servers may have the coordinator (docs/failover.md), some strikes kill the one that has it and delete its store,
and the server comes back when the other one has taken its place.

--json: {kills, lost_disks, lost_coordinators, strikes [{at_round, killed[], lost_disk, lost_coordinator, restarted_s, recovered_s, recomputed}], recovered_s {median, max}, rounds, digest, calm_digest, same}
  at_round: the newest complete round at the kill
  restarted_s: from the kill until all processes were ready again
  recovered_s: from then until a rank that had attached anew held a round completed since, and told it with its next gradient
  recomputed: rounds that had been complete and were computed again (the open one does not count)
Exit status: 0 same bits; 1 other bits, or it did not go on; 2 it cannot be begun.)";

struct ChaosOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  ClusterOptions cluster;               // base_dir: two clusters are made in it, chaos/ and calm/
  std::uint32_t kills = 50;             // processes
  std::uint64_t seed = 1;               // for victims and times
  double calm_seconds = 1.0;            // mean time between a recovery and the next kill
  double several = 0.4;                 // share of strikes that kill more than one at once
  std::uint32_t lose_disks = 0;         // strikes, spread among all, that kill one server and delete its store
  std::uint32_t lose_coordinators = 0;  // strikes, among those, that lose the server with the coordinator for good
  std::function<bool()> interrupted;
  std::function<void(const std::string&)> tell;  // prints a line
};

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

// The object of --json. kTimeout: the calm run stood still. kUnavailable: training did not continue, or a daemon could not be started again.
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

int chaos(ChaosOptions& options, bool json) {
  StopSignals signals;
  options.interrupted = [&] { return signals.taken_first(); };
  options.tell = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  if (options.cluster.base_dir.empty()) options.cluster.base_dir = "runs/chaos";
  const auto result = run_chaos(options);
  if (!result) {
    std::fprintf(stderr, "tributary chaos: %s\n", result.error().message.c_str());
    return result.error().code == ErrorCode::kInvalidArgument || result.error().code == ErrorCode::kConfig ? 2 : 1;
  }
  const bool same = result->at("same").get<bool>();
  if (json) {
    std::printf("%s\n", result->dump().c_str());
  } else {
    std::printf("%u kills in %llu rounds; back to a complete round in %.2f s (median), %.2f s (longest)\n%s\n",
                result->at("kills").get<unsigned>(), result->at("rounds").get<unsigned long long>(),
                result->at("recovered_s").at("median").get<double>(), result->at("recovered_s").at("max").get<double>(),
                same ? ("the same bits as a calm run: " + result->at("digest").get<std::string>()).c_str()
                     : ("OTHER bits than a calm run: " + result->at("digest").get<std::string>() + " instead of " +
                        result->at("calm_digest").get<std::string>())
                           .c_str());
  }
  return same ? 0 : 1;
}

}  // namespace

void add_chaos(CliCommand app, int& exit_status) {
  struct Arguments {
    ChaosOptions options;
    std::string transport = "shm";
    bool json = false;
  };
  auto a = std::make_shared<Arguments>();
  ChaosOptions& o = a->options;
  o.cluster.servers = o.cluster.nodes = o.cluster.ranks_per_node = 2;
  CliCommand command = app.add_subcommand("chaos", "kill daemons while a job trains; the result must not change");
  command->footer(kChaosFooter);
  command->add_option("job", o.job_file, "the job's TOML file")->required()->type_name("JOB.toml");
  command->add_option("--kills", o.kills, "processes to kill, at least")->capture_default_str();
  command->add_option("--seed", o.seed, "of who and when")->capture_default_str();
  command->add_option("--pause", o.calm_seconds, "mean time from a recovery to the next kill, seconds")
      ->check(positive())
      ->capture_default_str();
  command->add_option("--lose-disks", o.lose_disks, "strikes, among those, that delete a server's store")
      ->capture_default_str();
  command
      ->add_option("--lose-coordinators", o.lose_coordinators,
                   "strikes, among those, that lose the server with the coordinator for good, with its store")
      ->capture_default_str();
  command->add_option("--servers", o.cluster.servers, "server daemons")->capture_default_str();
  command->add_option("--nodes", o.cluster.nodes, "worker daemons")->capture_default_str();
  command->add_option("--ranks-per-node", o.cluster.ranks_per_node, "trainers of each worker")->capture_default_str();
  command->add_option("--transport", a->transport, "between workers and servers: shm, tcp, ipc")
      ->check(one_of({"shm", "tcp", "ipc"}))
      ->capture_default_str();
  command->add_option("--base-dir", o.cluster.base_dir, "folder for all files of both runs (default: runs/chaos)")
      ->type_name("FOLDER");
  command->add_option("--set", o.overrides, "override a key of the job file; may be repeated")
      ->type_name("KEY=VALUE")
      ->once_each();
  command->add_flag("--json", a->json, "print the result as one JSON object");
  command->callback([a, &exit_status] {
    a->options.cluster.transport = transport_named(a->transport);
    exit_status = chaos(a->options, a->json);
  });
}

}  // namespace tributary::cli

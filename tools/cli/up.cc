// tributary up: a whole cluster of real daemons and trainers on this machine, for one job.
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"
#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "common/devices/device_choice.h"
#include "tools/cli/commands.h"
#include "tools/cli/progress_view.h"
#include "tools/cli/run_summary.h"
#include "tools/cli/stop_signals.h"

namespace tributary::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 100;

constexpr const char* kFooter = R"(
Starts servers and workers as real daemons on this machine, trains the job on them, and stops everything. A job of mode "allreduce" needs no servers: its workers train it among themselves. All files (configurations, stores, logs) lie in one base folder. Ctrl-C stops at the end of a round; the same command goes on from
there, with the same result to the last bit. What the daemons' configurations look like, for machines of your own, is in the base folder.

Examples:
  tributary up configs/fashion-mnist.toml --servers 2 --nodes 2 --ranks-per-node 2
  tributary up configs/fashion-mnist-allreduce.toml --nodes 2 --ranks-per-node 2
  tributary up configs/fashion-mnist.toml --set optimizer.lr=0.002 --set train.epochs=3 --base-dir /tmp/try --fresh --json

--json: one object on standard output, everything else on standard error:
  test_accuracy, train_loss, train_accuracy, digest (of the final parameters), rounds, last_round, completed, stopped, resumed_from (round),
  restarts, seconds, samples_per_s, bytes_per_sample, step_split {compute_ms, reduce_ms, wait_ms}, nodes [{bytes_pushed, bytes_pulled}],
  servers [{name, lanes, cpu_seconds, max_owned_bytes}], devices [what the ranks computed on, each named once], computed_with [the libraries and their kernels, likewise]
Exit status: 0 trained to the end; 75 stopped in good order before that, the same command goes on; 1 something failed, or the state could not
be saved; 2 wrong usage, or trainers that say so of the job file or the data set.)";

struct UpOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  std::optional<std::uint16_t> servers;  // not given: as the job's mode needs
  ClusterOptions cluster;
  std::string transport = "shm";
  std::string device = "auto";
  bool json = false;
  bool keep_running = false;
};

std::string summary_file(const std::string& base_dir) {
  return base_dir + "/summary.json";
}

// The summary of this very job, if it was completed in this folder before.
std::optional<nlohmann::ordered_json> completed_before(const std::string& base_dir, const std::string& job_json) {
  std::ifstream in(summary_file(base_dir));
  const auto json = nlohmann::ordered_json::parse(in, nullptr, false);
  if (!json.is_object() || json.value("job_json", "") != job_json || !json.contains("summary")) return std::nullopt;
  return json.at("summary");
}

class Up {
 public:
  explicit Up(UpOptions options) : options_(std::move(options)), out_(options_.json ? stderr : stdout) {}

  Status run() {
    const auto job = load_job_config(options_.job_file, options_.overrides);
    failed_with_ = kExitUsage;
    if (!job) return tl::unexpected(job.error());
    const bool with_servers = on_servers(*job);
    options_.cluster.servers = options_.servers.value_or(with_servers ? 1 : 0);
    if (with_servers && options_.cluster.servers == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "--servers 0: job '" + job->name + "' has mode \"" + word(job->mode) +
                      "\" and needs servers; leave the option out, or set job.mode = \"allreduce\"");
    }
    if (options_.cluster.base_dir.empty()) options_.cluster.base_dir = "runs/" + job->name;
    const std::string base_dir = fs::absolute(options_.cluster.base_dir).lexically_normal().string();
    const std::string job_json = to_canonical_json(*job);
    if (!options_.cluster.fresh) {
      if (const auto before = completed_before(base_dir, job_json)) {
        std::fprintf(out_, "job %s is already complete in %s; --fresh removes it and starts over\n%s",
                     job->name.c_str(), base_dir.c_str(), summary_text(*before).c_str());
        if (options_.json) std::printf("%s\n", before->dump().c_str());
        return {};
      }
    }
    failed_with_ = kExitFailed;
    StopSignals signals;
    auto started = LocalCluster::start(options_.cluster);
    if (!started) return tl::unexpected(started.error());
    cluster_ = std::move(*started);
    const std::string socket = cluster_->socket_dir() + "/progress.sock";
    auto view = ProgressView::listen(socket, options_.json);
    if (!view) return tl::unexpected(view.error());
    if (auto ok = cluster_->start_trainers({.job_file = fs::absolute(options_.job_file).string(),
                                            .overrides = options_.overrides,
                                            .progress_socket = socket,
                                            .extra_arguments = {"--json", "--quiet", "--device", options_.device}});
        !ok) {
      return ok;
    }
    announce(*job);
    if (auto ok = watch(signals, *view); !ok) return ok;
    return conclude(job_json);
  }

  // After run().
  int exit_status(const Status& ran) const { return !ran ? failed_with_ : stopped_ ? kExitStopped : 0; }

 private:
  void announce(const JobConfig& job) {
    const ClusterOptions& o = cluster_->options();
    std::fprintf(out_, "job %s: %u %s, %u %s x %u %s, in %s\n", job.name.c_str(), o.servers,
                 o.servers == 1 ? "server" : "servers", o.nodes, o.nodes == 1 ? "node" : "nodes", o.ranks_per_node,
                 o.ranks_per_node == 1 ? "rank" : "ranks", o.base_dir.c_str());
    std::fprintf(out_, "  coordinator  %s (in %s)\n", cluster_->coordinator().c_str(),
                 cluster_->coordinator_daemon().name.c_str());
    for (const Daemon& d : cluster_->servers()) {
      std::string lanes;
      for (const std::string& lane : d.lanes) lanes += (lanes.empty() ? "" : ", ") + lane;
      std::fprintf(out_, "  %-12s pid %d, lanes %s, admin http://%s\n", d.name.c_str(), d.process.pid(), lanes.c_str(),
                   d.admin.c_str());
    }
    for (std::size_t i = 0; i < cluster_->workers().size(); ++i) {
      const Daemon& d = cluster_->workers()[i];
      std::string ranks;
      for (const Trainer& t : cluster_->trainers()) {
        if (t.rank / o.ranks_per_node != i) continue;
        ranks +=
            (ranks.empty() ? "" : ", ") + std::to_string(t.rank) + " (pid " + std::to_string(t.process.pid()) + ")";
      }
      std::fprintf(out_, "  %-12s pid %d, admin http://%s, ranks %s\n", d.name.c_str(), d.process.pid(),
                   d.admin.c_str(), ranks.c_str());
    }
    std::fprintf(out_, "  logs         %s\n", cluster_->log_dir().c_str());
    std::fflush(out_);
  }

  // If there was an error: what the first trainer that failed said, which the user can put right or not.
  int exit_status_of_failure() {
    if (!cluster_) return kExitFailed;
    for (Trainer& trainer : cluster_->trainers()) {
      const auto status = trainer.process.poll();
      if (status && status->signal == 0 && status->code == kExitUsage) return kExitUsage;
    }
    return kExitFailed;
  }

  // Until the trainers have ended, somebody failed, or a signal asked to stop.
  Status watch(StopSignals& signals, ProgressView& view) {
    bool trained = false;
    while (true) {
      pollfd fds[] = {{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                      {.fd = view.fd(), .events = POLLIN, .revents = 0}};
      ::poll(fds, 2, kPollMs);
      view.update();
      if (signals.taken()) {
        view.clear();
        std::fprintf(out_, "stopping after the open round (once more to leave at once)\n");
        std::fflush(out_);
        signals.release();
        interrupted_ = !trained;
        return {};
      }
      if (const auto failure = cluster_->failure()) {
        view.clear();
        failed_with_ = exit_status_of_failure();
        const bool refused = failed_with_ == kExitUsage;  // and would be again
        cluster_->stop_now();
        return fail(ErrorCode::kUnavailable,
                    *failure + (refused ? "\neverything was stopped, and what was kept is as it was"
                                        : "\neverything was stopped; the same command goes on from the last state that "
                                          "was kept"));
      }
      if (!trained && !cluster_->trainers_running()) {
        trained = true;
        view.clear();
        if (!options_.keep_running) return {};
        std::fprintf(out_, "training has ended; the daemons keep running until Ctrl-C\n");
        std::fflush(out_);
      }
    }
  }

  Status conclude(const std::string& job_json) {
    auto servers = server_usage(*cluster_);
    const std::string base_dir = cluster_->base_dir();
    const std::vector<std::string> killed = cluster_->stop();
    auto summary = summarise(*cluster_, std::move(servers));
    if (!summary) {
      // Interrupted before there was anything to stop.
      if (interrupted_ && killed.empty()) {
        std::fprintf(out_, "stopped before training began; the same command starts it again\n");
        stopped_ = true;
        return {};
      }
      return tl::unexpected(summary.error());
    }
    const std::string not_saved = summary->at("not_saved");
    if (summary->at("completed").get<bool>() && not_saved.empty()) {
      std::ofstream(summary_file(base_dir))
          << nlohmann::ordered_json{{"job_json", job_json}, {"summary", *summary}}.dump(2) << "\n";
    }
    std::fputs(summary_text(*summary).c_str(), out_);
    stopped_ = summary->at("stopped").get<bool>();
    if (stopped_) {
      const std::string reason = summary->at("stop_reason");
      std::fprintf(out_, "stopped after round %llu%s%s\n", summary->at("rounds").get<unsigned long long>(),
                   reason.empty() ? "" : (" (" + reason + ")").c_str(),
                   not_saved.empty() ? "; the same command goes on from there" : "");
    }
    std::fflush(out_);
    if (options_.json) std::printf("%s\n", summary->dump().c_str());
    if (killed.empty() && !not_saved.empty()) return fail(ErrorCode::kStore, "not saved: " + not_saved);
    if (killed.empty()) return {};
    std::string names;
    for (const std::string& name : killed) names += (names.empty() ? "" : ", ") + name;
    return fail(ErrorCode::kTimeout,
                "did not stop in time and had to be killed: " + names + "; see the logs in " + base_dir + "/logs");
  }

  UpOptions options_;
  std::FILE* out_;
  std::unique_ptr<LocalCluster> cluster_;
  bool interrupted_ = false;
  bool stopped_ = false;  // before the job was complete
  int failed_with_ = kExitFailed;
};

Status check_device(const std::string& text) {
  const auto request = DeviceRequest::parse(text);
  if (!request) return tl::unexpected(request.error());
  if (request->kind != DeviceRequest::Kind::kCuda) return {};
  const auto choice = choose_device(*request, 0);
  if (!choice) return tl::unexpected(choice.error());
  return {};
}

}  // namespace

void add_up(CliCommand app, int& exit_status) {
  auto options = std::make_shared<UpOptions>();
  CliCommand up = app.add_subcommand("up", "train a job on a whole cluster of daemons on this machine");
  up->footer(kFooter);
  up->add_option("job", options->job_file, "the job's TOML file")->required()->type_name("JOB.toml");
  up->add_option("--servers", options->servers,
                 "server daemons: shards of the parameters (default: 1, for a job of mode \"allreduce\" none)");
  up->add_option("--nodes", options->cluster.nodes, "worker daemons")->capture_default_str();
  up->add_option("--ranks-per-node", options->cluster.ranks_per_node, "trainers attached to each worker")
      ->capture_default_str();
  up->add_option("--base-dir", options->cluster.base_dir,
                 "folder for all files of the run (default: runs/NAME of the job)")
      ->type_name("FOLDER");
  up->add_option("--lanes", options->cluster.lanes, "lanes of each daemon (default: from the machine's cores)");
  up->add_option("--transport", options->transport,
                 "between workers and servers: shm (gradients and parameters stay in shared memory), tcp, ipc")
      ->check(one_of({"shm", "tcp", "ipc"}))
      ->capture_default_str();
  up->add_option("--device", options->device,
                 "what trainers compute on: cpu, cuda (they take turns with the devices), cuda:N, or auto: cuda if it "
                 "can be used, else cpu")
      ->type_name("DEVICE")
      ->capture_default_str();
  up->add_option("--set", options->overrides, "override a key of the job file, as train.epochs=2; may be repeated")
      ->type_name("KEY=VALUE")
      ->once_each();
  up->add_flag("--fresh", options->cluster.fresh, "remove what an earlier run left in the base folder, and start over");
  up->add_flag("--keep-running", options->keep_running, "leave the daemons running after the job until Ctrl-C");
  up->add_flag("--json", options->json, "print the result as one JSON object");
  up->callback([options, &exit_status] {
    // Before any daemon is started: a device that is not there is a mistake on the command line.
    if (auto ok = check_device(options->device); !ok) {
      std::fprintf(stderr, "tributary up: %s\n", ok.error().message.c_str());
      exit_status = 2;
      return;
    }
    options->cluster.transport = transport_named(options->transport);
    Up run(*options);
    const Status ran = run.run();
    if (!ran) std::fprintf(stderr, "tributary up: %s\n", ran.error().message.c_str());
    exit_status = run.exit_status(ran);
  });
}

}  // namespace tributary::cli

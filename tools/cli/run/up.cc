// tributary up: a whole cluster of real daemons and trainers on this machine, for one job.
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
#include "common/config/json_text.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/run/local_run.h"
#include "tools/cli/run/run_summary.h"

namespace tributary::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUpFooter = R"(
Starts servers and workers as real daemons on this machine, trains the job on them, and stops everything. A job of mode "allreduce" needs no servers: its workers train it among themselves. All files (configurations, stores, logs) lie in one base folder. Ctrl-C stops at the end of a round; the same command goes on from
there, with the same result to the last bit. What the daemons' configurations look like, for machines of your own, is in the base folder.

Examples:
  tributary up configs/fashion-mnist.toml --servers 2 --nodes 2 --ranks-per-node 2
  tributary up configs/fashion-mnist-allreduce.toml --nodes 2 --ranks-per-node 2
  tributary up configs/fashion-mnist.toml --set optimizer.lr=0.002 --set train.epochs=3 --base-dir runs/try --fresh --json

--json: one object on standard output, everything else on standard error:
  test_accuracy, train_loss, train_accuracy, digest (of the final parameters), rounds, last_round, completed, stopped, resumed_from (round),
  restarts, seconds, samples_per_s, bytes_per_sample, step_split {compute_ms, reduce_ms, wait_ms}, nodes [{bytes_pushed, bytes_pulled}],
  servers [{name, lanes, cpu_seconds, max_owned_bytes}], computed_with [the libraries that ranks computed with and their kernels, each named once]
Exit status: 0 trained to the end; 75 stopped cleanly before that, the same command goes on; 1 something failed, or the state could not
be saved; 2 wrong usage, or trainers that say so of the job file or the data set.)";

struct UpOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  LocalRunOptions local;
};

std::string summary_file(const std::string& base_dir) {
  return base_dir + "/summary.json";
}

// The summary of this very job, if it was completed in this folder before.
std::optional<nlohmann::ordered_json> completed_before(const std::string& base_dir, const std::string& job_json) {
  std::ifstream in(summary_file(base_dir));
  const auto json = ordered_json_in(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!json.is_object() || json.value("job_json", "") != job_json || !json.contains("summary")) return std::nullopt;
  return json.at("summary");
}

class Up {
 public:
  explicit Up(UpOptions options) : options_(std::move(options)), run_(options_.local), out_(run_.out()) {}

  Status run() {
    const auto job = load_job_config(options_.job_file, options_.overrides);
    failed_with_ = kExitUsage;
    if (!job) return tl::unexpected(job.error());
    const bool with_servers = on_servers(*job);
    const std::uint16_t servers = options_.local.servers.value_or(with_servers ? 1 : 0);
    if (with_servers && servers == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "--servers 0: job '" + job->name + "' has mode \"" + word(job->mode) +
                      "\" and needs servers; leave the option out, or set job.mode = \"allreduce\"");
    }
    std::string folder = options_.local.cluster.base_dir;
    if (folder.empty()) folder = "runs/" + job->name;
    const std::string base_dir = fs::absolute(folder).lexically_normal().string();
    const std::string job_json = to_canonical_json(*job);
    if (!options_.local.cluster.fresh) {
      if (const auto before = completed_before(base_dir, job_json)) {
        std::fprintf(out_, "job %s is already complete in %s; --fresh removes it and starts over\n%s",
                     job->name.c_str(), base_dir.c_str(), summary_text(*before).c_str());
        if (options_.local.json) std::printf("%s\n", before->dump().c_str());
        return {};
      }
    }
    failed_with_ = kExitFailed;
    if (auto ok = run_.start(servers, base_dir); !ok) return ok;
    if (auto ok = run_.cluster().start_trainers(
            {.command = run_.cluster().train_command(fs::absolute(options_.job_file).string(), options_.overrides,
                                                     {"--json", "--quiet"}),
             .progress_socket = run_.progress_socket()});
        !ok) {
      return ok;
    }
    run_.announce("job " + job->name);
    if (auto ok = run_.watch([this] { return look(); }); !ok) return ok;
    return conclude(job_json);
  }

  // After run().
  int exit_status(const Status& ran) const { return !ran ? failed_with_ : stopped_ ? kExitStopped : 0; }

 private:
  // If there was an error: what the first trainer that failed said, which the user can put right or not.
  int exit_status_of_failure() {
    for (Trainer& trainer : run_.cluster().trainers()) {
      const auto status = trainer.process.poll();
      if (status && status->signal == 0 && status->code == kExitUsage) return kExitUsage;
    }
    return kExitFailed;
  }

  // No process may end before the job does.
  Status look() {
    const auto failure = run_.cluster().failure();
    if (!failure) return {};
    failed_with_ = exit_status_of_failure();
    const bool refused = failed_with_ == kExitUsage;  // and would be again
    run_.cluster().stop_now();
    return fail(
        ErrorCode::kUnavailable,
        *failure + (refused ? "\neverything was stopped, and what was kept is as it was"
                            : "\neverything was stopped; the same command goes on from the last state that was kept"));
  }

  Status conclude(const std::string& job_json) {
    LocalCluster& cluster = run_.cluster();
    auto servers = server_usage(cluster);
    const std::string base_dir = cluster.base_dir();
    const std::vector<std::string> killed = cluster.stop();
    auto summary = summarise(cluster, std::move(servers));
    if (!summary) {
      // Interrupted before there was anything to stop.
      if (run_.interrupted() && killed.empty()) {
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
      tell_stopped(out_, summary->at("rounds").get<std::uint64_t>(), summary->at("stop_reason"), not_saved.empty());
    }
    std::fflush(out_);
    if (options_.local.json) std::printf("%s\n", summary->dump().c_str());
    if (killed.empty() && !not_saved.empty()) return fail(ErrorCode::kStore, "not saved: " + not_saved);
    return stopped_in_time(killed, base_dir);
  }

  UpOptions options_;
  LocalRun run_;
  std::FILE* out_;
  bool stopped_ = false;  // before the job was complete
  int failed_with_ = kExitFailed;
};

}  // namespace

void add_up(CliCommand app, int& exit_status) {
  auto options = std::make_shared<UpOptions>();
  CliCommand up = app.add_subcommand("up", "train a job on a whole cluster of daemons on this machine");
  up->footer(kUpFooter);
  up->add_option("job", options->job_file, "the job's TOML file")->required()->type_name("JOB.toml");
  add_local_run_options(up, options->local, "1, for a job of mode \"allreduce\" none", "runs/NAME of the job");
  up->add_option("--set", options->overrides, "override a key of the job file, as train.epochs=2; may be repeated")
      ->type_name("KEY=VALUE")
      ->once_each();
  up->callback([options, &exit_status] {
    Up run(*options);
    const Status ran = run.run();
    if (!ran) std::fprintf(stderr, "tributary up: %s\n", ran.error().message.c_str());
    exit_status = run.exit_status(ran);
  });
}

}  // namespace tributary::cli

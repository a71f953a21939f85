// tributary-train: the built-in trainer, one rank of a job or the whole job in one process.
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/command_line.h"
#include "common/base/version.h"
#include "common/config/config_toml.h"
#include "common/daemon/daemon_thread.h"
#include "train/dataset.h"
#include "train/report.h"
#include "train/standalone.h"
#include "train/stop_signal.h"
#include "train/trainer.h"

namespace tributary::train {
namespace {

struct Options {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string socket = WorkerConfig{}.socket;
  std::uint32_t attach_timeout_s = kAttachTimeout.count();
  std::string progress_socket;
  Topology topology;
  bool standalone = false;
  std::uint32_t ranks = 1;
  std::uint32_t nodes = 1;
  bool json = false;
  bool quiet = false;
  double us_per_sample = 0.0;
  std::string last_round_after;
};

constexpr const char* kDescription = R"(Trains the network that a job file describes, on Fashion-MNIST.

As one rank of a job, attached to the worker daemon of its node (all ranks of all nodes do this, with the same job file;
torchrun and `tributary run` set the rank options through environment variables):

  torchrun --no-python --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29500 \
    tributary-train --job configs/fashion-mnist.toml

As the whole job in one process without any daemon, the reference that distributed runs agree with to the bit:

  tributary-train --job configs/fashion-mnist.toml --standalone --ranks 4

`tributary up` starts a whole cluster with its trainers on this machine.)";

constexpr const char* kFooter = R"(
SIGINT or SIGTERM stops the job after the open round; the same command goes on from there. A rank that waits says what for. A second
one, a second or more later, ends this rank at once.
Exit status: 0 trained to the end; 75 stopped cleanly before that, run again to go on; 1 the run failed, its
state could not be saved, or its loss or parameters are no longer finite; 2 the command line, the job file or the data
set is wrong.)";

// Errors that the user's input causes, and not the run.
int exit_status(const Error& error) {
  switch (error.code) {
    case ErrorCode::kConfig:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kTopology:
    case ErrorCode::kConfigMismatch:
    case ErrorCode::kLayoutMismatch:
    case ErrorCode::kNotFound:
      return kExitUsage;
    default:
      return kExitFailed;
  }
}

int report_error(const Error& error, const std::string& who) {
  std::fprintf(stderr, "tributary-train: %s%s\n", who.c_str(), error.message.c_str());
  return exit_status(error);
}

// All errors of the data set are the user's to correct.
int report_data_error(const Error& error, const std::string& who) {
  report_error(error, who);
  return kExitUsage;
}

void print(const RunSummary& summary, const Options& options) {
  // With --json, standard output holds one JSON object and nothing else.
  const bool prints_summary = summary.rank == 0 && !options.quiet;
  if (prints_summary) std::fputs(to_text(summary).c_str(), options.json ? stderr : stdout);
  if (options.json) std::printf("%s\n", to_json(summary).c_str());
  std::fflush(stdout);
}

int run_standalone(const Options& options, JobConfig job) {
  const Result<ImageSet> training = load_training_set(job.train);
  if (!training) return report_data_error(training.error(), "");
  const Result<ImageSet> test = load_test_set(job.train, *training);
  if (!test) return report_data_error(test.error(), "");
  ProgressBar bar(stderr, options.quiet ? ProgressBar::Style::kOff : ProgressBar::style_for(stderr), "");
  const StandaloneOptions standalone{.job = std::move(job), .ranks = options.ranks, .nodes = options.nodes};
  const Result<RunSummary> summary = train_standalone(standalone, *training, &*test, &bar);
  if (!summary) return report_error(summary.error(), "");
  print(*summary, options);
  return summary->not_finite.empty() ? 0 : kExitFailed;
}

int run_rank(const Options& options, JobConfig job) {
  const Topology& topology = options.topology;
  if (Status status = topology.validate(); !status) return report_error(status.error(), "");
  const std::string who = "rank " + std::to_string(topology.rank) + ": ";
  std::optional<ProgressSender> sender;
  if (!options.progress_socket.empty()) {
    Result<ProgressSender> made = ProgressSender::to(options.progress_socket);
    if (!made) return report_error(made.error(), who);
    sender.emplace(std::move(*made));
  }
  const Result<ImageSet> training = load_training_set(job.train);
  if (!training) return report_data_error(training.error(), who);
  std::optional<ImageSet> test;
  if (topology.rank == 0 || is_elastic(job)) {  // there, any rank may become the first
    Result<ImageSet> loaded = load_test_set(job.train, *training);
    if (!loaded) return report_data_error(loaded.error(), who);
    test = std::move(*loaded);
  }
  // Only one rank draws a bar, and none if another program shows the progress of all.
  const bool draws = topology.rank == 0 && !options.quiet && !sender;
  ProgressBar bar(stderr, draws ? ProgressBar::style_for(stderr) : ProgressBar::Style::kOff,
                  topology.world_size == 1 ? "" : "rank 0 of " + std::to_string(topology.world_size));
  StopSignal stop_signal;
  const TrainerOptions trainer{.job = std::move(job),
                               .socket = options.socket,
                               .attach_timeout = std::chrono::seconds(options.attach_timeout_s),
                               .topology = topology,
                               .us_per_sample = options.us_per_sample,
                               .last_round_after = options.last_round_after};
  const Result<RunSummary> summary =
      train_rank(trainer, *training, test ? &*test : nullptr, bar, sender ? &*sender : nullptr, stop_signal);
  if (!summary) return report_error(summary.error(), who);
  print(*summary, options);
  if (!summary->not_saved.empty() || !summary->not_finite.empty()) return kExitFailed;
  return summary->stopped ? kExitStopped : 0;
}

int run(int argc, char** argv) {
  Options options;
  CommandLine app(kDescription, "tributary-train");
  app.footer(kFooter);
  app.version(std::string("tributary-train ") + kVersion);
  app.add_option("--job", options.job_file, "job file (TOML)")->required()->type_name("FILE");
  app.add_option("--set", options.overrides, "override a key of the job file, as train.epochs=2; may be repeated")
      ->type_name("KEY=VALUE")
      ->once_each();
  app.add_flag("--json", options.json,
               "print one JSON object with the results on standard output, all else on standard error");
  app.add_flag("--quiet", options.quiet, "no progress and no summary");

  CliCommand rank = app.add_option_group("One rank of a job");
  rank->add_option("--worker", options.socket, "socket of this node's worker daemon")
      ->envname("TRIBUTARY_SOCKET")
      ->type_name("SOCKET")
      ->default_str("tributary/worker.sock in $XDG_RUNTIME_DIR or /run/user/UID");
  rank->add_option("--attach-timeout", options.attach_timeout_s,
                   "how long to wait for the worker daemon and for all ranks to be there, each time this rank attaches")
      ->envname(kAttachTimeoutVariable)
      ->type_name("SECONDS")
      ->check(in_range(1u, static_cast<std::uint32_t>(kMaxAttachTimeout.count())))
      ->capture_default_str();
  rank->add_option("--progress-socket", options.progress_socket,
                   "Unix datagram socket that gets a JSON object for every round, instead of the progress bar")
      ->envname("TRIBUTARY_PROGRESS")
      ->type_name("PATH");
  std::vector<CliOption> places;
  const auto place = [&](const char* flag, const char* variable, std::uint32_t& value, const char* help) {
    places.push_back(rank->add_option(flag, value, help)->envname(Topology::variable(variable))->type_name("N"));
  };
  place("--rank", "RANK", options.topology.rank, "global rank");
  place("--world-size", "WORLD_SIZE", options.topology.world_size, "number of ranks");
  place("--local-rank", "LOCAL_RANK", options.topology.local_rank, "rank within the node");
  place("--local-world-size", "LOCAL_WORLD_SIZE", options.topology.local_world_size, "number of ranks on the node");
  place("--node-rank", "GROUP_RANK", options.topology.node_rank, "number of the node");

  // Options for tests: not shown.
  app.add_option("--slow-us-per-sample", options.us_per_sample)->group("");
  app.add_option("--last-round-after", options.last_round_after)->group("");

  CliCommand alone = app.add_option_group("The whole job in this process");
  CliOption standalone = alone->add_flag("--standalone", options.standalone, "train without any daemon");
  alone->add_option("--ranks", options.ranks, "ranks to compute, one after another")
      ->type_name("N")
      ->capture_default_str()
      ->needs(standalone);
  alone
      ->add_option("--nodes", options.nodes,
                   "nodes that the ranks are summed on before the servers' sum; matters to the bits only "
                   "with 16-bit pushes or when ranks per node are no power of two")
      ->type_name("N")
      ->capture_default_str()
      ->needs(standalone);

  if (const auto status = app.parse(argc, argv)) return *status;
  if (!options.standalone) {
    for (const CliOption& option : places) {
      if (option->count() > 0) continue;
      std::fprintf(
          stderr,
          "tributary-train: neither %s nor the environment variable %s says which rank this is; start it with "
          "torchrun, "
          "give all of --rank, --world-size, --local-rank, --local-world-size and --node-rank, or train everything in "
          "this process with --standalone\n",
          option->name().c_str(), option->environment_variable().c_str());
      return kExitUsage;
    }
  }
  Result<JobConfig> job = load_job_config(options.job_file, options.overrides);
  if (!job) return report_error(job.error(), "");
  return options.standalone ? run_standalone(options, std::move(*job)) : run_rank(options, std::move(*job));
}

}  // namespace
}  // namespace tributary::train

int main(int argc, char** argv) {
  int code = tributary::kExitFailed;
  const tributary::Status ran = tributary::contained([&]() -> tributary::Status {
    code = tributary::train::run(argc, argv);
    return {};
  });
  if (!ran) std::fprintf(stderr, "tributary-train: %s\n", ran.error().message.c_str());
  return code;
}

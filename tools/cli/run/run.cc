// tributary run: any trainers on a whole cluster of real daemons on this machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/exit_codes.h"
#include "common/base/printed.h"
#include "common/config/json_text.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/run/job_watch.h"
#include "tools/cli/run/keep_alive.h"
#include "tools/cli/run/local_run.h"
#include "tools/cli/run/run_summary.h"
#include "tools/cluster/command.h"
#include "tools/cluster/line_follower.h"

namespace tributary::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTrainerGrace{30};  // a trainer may have something of its own to save

constexpr const char* kRunFooter = R"(
Starts servers and workers as real daemons on this machine and COMMAND once for each rank, and stops everything when all have ended. The command is a trainer
that attaches to its node's worker, in Python or over the C library, and brings its own job; it is told by its environment who and where it is:
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE   as torchrun counts them; each with TRIBUTARY_ in front, too
  TRIBUTARY_SOCKET     its worker's socket
  TRIBUTARY_ATTACH_TIMEOUT   with --attach-timeout
  TRIBUTARY_PROGRESS   a datagram socket that shows each round it is told of
  MASTER_ADDR, MASTER_PORT   for torch.distributed.init_process_group(); another port when ranks are started again
  OMP_NUM_THREADS      processors that this command may use (affinity, cgroup quota) / ranks, unless it is set
What rank 0 prints is shown here; all else is in logs/ in the base folder.

A trainer or daemon that is killed, or ends with an error, is started again, and the job goes on where it was. The run ends, with the last lines of the log, if one
fails before any round of this run was complete, says with exit status 2 that it is used wrongly, or has to be started again too often.
Ctrl-C stops at the end of a round; the same command goes on from there.

Examples:
  tributary run -- python train.py
  tributary run --servers 2 --nodes 2 --ranks-per-node 2 -- python train.py --lr 0.1
  tributary run --nodes 2 -- tributary-train --job configs/fashion-mnist.toml --quiet --json

--json: one object on standard output, everything else on standard error:
  command, job, rounds (of the job), completed, stopped, stop_reason, not_saved, restarts (of processes), seconds, nodes [{bytes_pushed, bytes_pulled}],
  servers [{name, lanes, cpu_seconds, max_owned_bytes}]; digest and result: of the last line of rank 0 that is a JSON object with a digest
Exit status: 0 all trainers ended well; 75 stopped cleanly before that, the same command goes on; 1 something failed, or the state could not
be saved; 2 wrong usage, or a trainer that says so.)";

struct RunOptions {
  std::vector<std::string> command;
  LocalRunOptions local;
  std::uint32_t restarts = 100;
};

// Whether a job's status says that no rank is in it and it has not finished.
bool left_alone(const Json& job) {
  const std::string phase = job.value("phase", "");
  return !job.value("finished", false) && (phase == "idle" || phase == "gathering");
}

// Returns the name of a run of this command: "train" for `python train.py --lr 0.1` and `python -m my.train`.
std::string stem_of(const std::vector<std::string>& command) {
  for (std::size_t i = 1; i < command.size(); ++i) {
    if (command[i] == "-m" && i + 1 < command.size()) return command[i + 1].substr(command[i + 1].rfind('.') + 1);
    if (command[i].ends_with(".py")) return fs::path(command[i]).stem();
  }
  return fs::path(command.front()).stem();
}

class Run {
 public:
  explicit Run(RunOptions options) : options_(std::move(options)), run_(options_.local) {}

  Status run() {
    std::vector<std::string> command = options_.command;
    failed_with_ = kExitUsage;
    command.front() = find_program(command.front());
    if (command.front().empty()) {
      return fail(ErrorCode::kNotFound, "there is no program '" + options_.command.front() +
                                            "' (a path, or a name in PATH); give the trainer's command after --");
    }
    failed_with_ = kExitFailed;
    std::string folder = options_.local.cluster.base_dir;
    if (folder.empty()) folder = "runs/" + stem_of(options_.command);
    options_.local.cluster.trainer_grace = kTrainerGrace;
    if (auto ok = run_.start(options_.local.servers.value_or(1), fs::absolute(folder).lexically_normal().string());
        !ok) {
      if (ok.error().code == ErrorCode::kInvalidArgument) failed_with_ = kExitUsage;
      return ok;
    }
    JobWatch job(run_.cluster());
    LineFollower output(run_.cluster().log_dir() + "/trainer-0.out");
    const auto tell = [this](std::string_view line) { run_.tell(line); };
    KeepAlive keep(
        run_.cluster(), options_.restarts,
        [&job] {
          job.ask(true);
          return job.rounds();
        },
        [this] { return somebody_waits(run_.cluster()); }, tell);
    began_ = Clock::now();
    if (auto ok = run_.cluster().start_trainers({.command = std::move(command),
                                                 .progress_socket = run_.progress_socket(),
                                                 .meet = true,
                                                 .output_apart = true});
        !ok) {
      return ok;
    }
    run_.announce(command_text(options_.command));
    const Status watched = run_.watch([&] {
      output.read(tell);
      job.ask(false);
      return keep.look();
    });
    Status ended = watched ? conclude(job, output, keep.restarts()) : given_up(watched, job.rounds());
    output.read(tell, true);
    if (summary_.is_object()) show();
    return ended;
  }

  // After run().
  int exit_status(const Status& ran) const { return !ran ? failed_with_ : stopped_ ? kExitStopped : 0; }

 private:
  Status given_up(const Status& why, std::uint64_t rounds) {
    if (why.error().code == ErrorCode::kInvalidArgument) failed_with_ = kExitUsage;
    run_.cluster().stop_now();
    return fail(why.error().code,
                why.error().message + "\neverything was stopped" +
                    (rounds > 0 ? "; the same command goes on from the last state that was kept" : ""));
  }

  Status conclude(JobWatch& job, LineFollower& output, std::uint32_t restarts) {
    LocalCluster& cluster = run_.cluster();
    job.ask(true);
    Json nodes = node_traffic(cluster), servers = server_usage(cluster);
    // No daemon tells trainers that are in no job yet to stop.
    if (run_.interrupted() && job.job().is_null()) {
      cluster.stop_now();
      run_.tell("stopped before training began; the same command starts it again");
      stopped_ = true;
      return {};
    }
    if (run_.interrupted() && left_alone(job.job())) cluster.tell_trainers();
    std::vector<std::string> killed = cluster.stop_training();
    job.ask(true);
    for (std::string& name : cluster.stop()) killed.push_back(std::move(name));
    output.read([this](std::string_view line) { run_.tell(line); }, true);
    const Json known = job.job().is_object() ? job.job() : Json::object();
    stopped_ = run_.interrupted();
    Status failed;
    for (Trainer& trainer : cluster.trainers()) {
      const auto status = trainer.process.poll();
      if (!status || status->signal != 0 || status->ok()) continue;
      if (status->code == kExitStopped) {
        stopped_ = true;
      } else if (failed) {
        failed = fail(ErrorCode::kUnavailable, how_ended(trainer, *status));
      }
    }
    const std::string not_saved = known.value("not_saved", "");
    summary_ = {{"command", command_text(options_.command)},
                {"job", known.value("name", Json())},
                {"rounds", known.value("max_version", 0ull)},
                {"completed", known.value("finished", false)},
                {"stopped", stopped_},
                {"stop_reason", known.value("last_stop", "")},
                {"not_saved", not_saved},
                {"restarts", restarts},
                {"seconds", std::chrono::duration<double>(Clock::now() - began_).count()},
                {"nodes", std::move(nodes)},
                {"servers", std::move(servers)}};
    if (auto same = add_digest(); !same) return same;
    if (!not_saved.empty()) return fail(ErrorCode::kStore, "not saved: " + not_saved);
    if (!failed) return failed;
    if (!stopped_ && left_alone(known)) {
      return fail(ErrorCode::kUnavailable, "all ranks ended with status 0, but job '" + known.value("name", "") +
                                               "' did not finish: " + known.value("last_stop", "") +
                                               "; the same command goes on from the last state that was kept");
    }
    return stopped_in_time(killed, cluster.base_dir());
  }

  // Adds rank 0's result and the ranks' common digest, from the trainers' last lines that have a result.
  Status add_digest() {
    Json first;
    for (const Trainer& trainer : run_.cluster().trainers()) {
      const std::string line = trainer_result(trainer);
      if (line.empty()) continue;
      const Json result = ordered_json_in(line);
      if (trainer.rank == 0) summary_["result"] = result;
      if (first.is_null()) summary_["digest"] = first = result.at("digest");
      if (result.at("digest") == first) continue;
      return fail(ErrorCode::kInternal, "ranks ended with different parameters: digest " + first.dump() + ", and " +
                                            result.at("digest").dump() + " on rank " + std::to_string(trainer.rank));
    }
    return {};
  }

  void show() {
    std::FILE* out = run_.out();
    const auto rounds = summary_.at("rounds").get<unsigned long long>();
    const auto restarts = summary_.at("restarts").get<unsigned>();
    if (summary_.at("job").is_null()) {
      run_.tell("no round was trained: no trainer attached to its worker (TRIBUTARY_SOCKET)");
    } else {
      std::string text = printed("  rounds       %llu, in %.1f s", rounds, summary_.at("seconds").get<double>());
      if (restarts > 0) text += ", with " + counted(restarts, "restart");
      text += "\n" + nodes_text(summary_) + servers_text(summary_);
      if (summary_.contains("digest")) text += "  digest       " + summary_.at("digest").get<std::string>() + "\n";
      std::fputs(text.c_str(), out);
    }
    if (stopped_) tell_stopped(out, rounds, summary_.at("stop_reason"), summary_.at("not_saved") == "");
    std::fflush(out);
    if (options_.local.json) std::printf("%s\n", summary_.dump().c_str());
  }

  RunOptions options_;
  LocalRun run_;
  Clock::time_point began_;
  Json summary_;
  bool stopped_ = false;  // before the trainers had ended by themselves
  int failed_with_ = kExitFailed;
};

}  // namespace

void add_run(CliCommand app, const std::vector<std::string>& trainer, int& exit_status) {
  auto options = std::make_shared<RunOptions>();
  CliCommand run = app.add_subcommand("run", "run a trainer of your own on a whole cluster of daemons on this machine");
  run->footer(kRunFooter);
  run->takes_command();
  add_local_run_options(run, options->local, "1; 0 for a job of mode \"allreduce\"",
                        "runs/NAME of the program, as train for train.py");
  run->add_option("--restarts", options->restarts,
                  "how often one process is started again within 10 rounds before the run is given up")
      ->capture_default_str();
  run->callback([run, options, &trainer, &exit_status] {
    options->command = run.rest();
    if (!options->command.empty() && !trainer.empty()) options->command.push_back("--");
    options->command.insert(options->command.end(), trainer.begin(), trainer.end());
    exit_status = kExitUsage;
    if (options->command.empty()) {
      std::fprintf(
          stderr,
          "tributary run: no command is given; the trainer's stands after --: tributary run -- python train.py\n");
      return;
    }
    if (options->command.front().starts_with("-")) {
      std::fprintf(stderr, "tributary run: unknown option %s; options of the trainer's command stand after --\n",
                   options->command.front().c_str());
      return;
    }
    Run one(*options);
    const Status ran = one.run();
    if (!ran) std::fprintf(stderr, "tributary run: %s\n", ran.error().message.c_str());
    exit_status = one.exit_status(ran);
  });
}

}  // namespace tributary::cli

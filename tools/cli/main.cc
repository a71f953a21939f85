// tributary: the tool. One file per subcommand; tools/cli/bench/bench_main.cc has those that measure.
#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "common/base/command_line.h"
#include "common/base/version.h"
#include "tools/cli/parts/commands.h"

int main(int argc, char** argv) {
  tributary::CommandLine app(
      "Tributary: parameter-server training, exact and durable.\n\n"
      "  tributary up configs/fashion-mnist.toml      train on a whole local cluster of real daemons\n"
      "  tributary run --nodes 2 -- python train.py   the same with trainers of your own\n"
      "  tributary status --base-dir runs/NAME        ask its daemons, from another terminal\n"
      "  tributary top --base-dir runs/NAME           the same once a second, with rounds a second\n"
      "  tributary doctor                             is this machine fit for a run, and what does it have?\n"
      "  tributary plan --nodes 4 --servers 4 ...     which layout is fastest on these links, and what binds it?\n"
      "  tributary bench pushpull                     how fast gradients go in and parameters come out here\n"
      "  tributary checkpoint save JOB --dir DIR      a job's state as a directory; restore it on any servers\n"
      "  tributary job remove JOB                     delete a job with all that servers have of it\n"
      "  tributary trace JOB --out FILE               what every lane does in some rounds, and what binds the job\n"
      "  tributary keys init DIR                      keys, without which daemons serve their own machine only\n"
      "  tributary lab run LAB.toml                   on several hosts with limited links, emulated on this machine\n\n"
      "The daemons are tributary-server and tributary-worker; the built-in trainer is tributary-train. Each has a "
      "--help.",
      "tributary");
  app.version(std::string("tributary ") + tributary::kVersion);
  app.require_subcommand(1);
  std::signal(SIGPIPE, SIG_IGN);  // `tributary status | head` must not die in the middle of stopping daemons
  int exit_status = 0;
  // Another program's command line is not read.
  std::vector<std::string> trainer;
  if (const auto end = argv + argc, cut = std::find(argv + 1, end, std::string("--"));
      argc > 1 && argv[1] == std::string("run") && cut != end) {
    trainer.assign(cut + 1, end);
    argc = static_cast<int>(cut - argv);
  }
  tributary::cli::add_up(app, exit_status);
  tributary::cli::add_run(app, trainer, exit_status);
  tributary::cli::add_status(app, exit_status);
  tributary::cli::add_top(app, exit_status);
  tributary::cli::add_chaos(app, exit_status);
  tributary::cli::add_doctor(app, exit_status);
  tributary::cli::add_checkpoint(app, exit_status);
  tributary::cli::add_job(app, exit_status);
  tributary::cli::add_logs(app, exit_status);
  tributary::cli::add_trace(app, exit_status);
  tributary::cli::add_keys(app, exit_status);
  tributary::cli::add_completion(app, exit_status);
  tributary::cli::list_measuring(app);
  return tributary::cli::run_command_line(app, argc, argv, exit_status);
}

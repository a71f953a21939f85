// tributary-bench: the subcommands of `tributary` that measure and emulate. A program of its own, because what they link is
// half of all code, and training needs none of it.
#include <csignal>
#include <string>

#include "common/base/command_line.h"
#include "common/base/version.h"
#include "tools/cli/parts/commands.h"

int main(int argc, char** argv) {
  tributary::CommandLine app("Tributary's measurements; `tributary --help` lists all commands.", "tributary");
  app.version(std::string("tributary-bench ") + tributary::kVersion);
  app.require_subcommand(1);
  std::signal(SIGPIPE, SIG_IGN);
  int exit_status = 0;
  tributary::cli::add_bench(app, exit_status);
  tributary::cli::add_lab(app, exit_status);
  tributary::cli::add_plan(app, exit_status);
  return tributary::cli::run_command_line(app, argc, argv, exit_status);
}

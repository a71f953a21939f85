// The command line of both programs of tools/cli.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "common/base/command_tree.h"
#include "common/base/edit_distance.h"
#include "common/daemon/daemon_thread.h"
#include "tools/cli/parts/commands.h"
#include "tools/cluster/process.h"

namespace tributary::cli {
namespace {

// Looks in this command, and then in those below it: `tributary run` may be `tributary lab run`.
std::string meant(const CLI::App& app, const std::string& path, const std::string& word) {
  std::string best;
  std::size_t least = word.size() / 3 + 1;
  for (const CLI::App* command : shown_subcommands(app)) {
    const std::size_t far = edit_distance(word, command->get_name());
    const bool begins = word.size() > 1 && command->get_name().starts_with(word);
    if (!begins && far > least) continue;
    least = begins ? 0 : std::min(least, far);
    best = path + " " + command->get_name();
  }
  if (!best.empty()) return best;
  for (const CLI::App* command : shown_subcommands(app)) {
    for (const CLI::App* below : shown_subcommands(*command)) {
      if (below->get_name() == word) return path + " " + command->get_name() + " " + word;
    }
  }
  return {};
}

// If the command line names an unknown subcommand: returns the error, with the one that may be meant.
std::optional<std::string> unknown_subcommand(CliCommand top, int argc, const char* const* argv) {
  const CLI::App* at = &top.app();
  std::string path = at->get_name();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (at->get_require_subcommand_min() == 0 || word.starts_with("-")) return std::nullopt;
    const std::vector<const CLI::App*> commands = at->get_subcommands([](const CLI::App*) { return true; });
    const auto found = std::ranges::find(commands, word, [](const CLI::App* command) { return command->get_name(); });
    if (found == commands.end()) {
      const std::string other = meant(*at, path, word);
      return "'" + path + " " + word + "' is no command" + (other.empty() ? "" : "; did you mean '" + other + "'?") +
             (other.empty() ? "; " : " ") + "'" + path + " --help' lists them all";
    }
    at = *found;
    path += " " + word;
  }
  return std::nullopt;
}

}  // namespace

void list_measuring(CommandLine& app) {
  const std::string program = executable_dir() + "/tributary-bench";
  const std::string cure = "a checkout builds it with 'cmake --build --preset release --target tributary-bench'";
  app.add_elsewhere("bench", kBenchHelp, program, cure);
  CliCommand lab = app.add_elsewhere("lab", kLabHelp, program, cure);
  for (const char* below : {"up", "run", "down"}) lab.add_subcommand(below, "");
  app.add_elsewhere("plan", kPlanHelp, program, cure);
}

void add_secure(CliCommand command, std::optional<PayloadSecurity>& secure) {
  command
      .add_flag_function(
          "--secure", word(PayloadSecurity::kEncrypt),
          [&secure](const std::string& way) { secure = choice_of<PayloadSecurity>(way); },
          "give every daemon keys, so that all connections are encrypted; --secure=plain: but for payloads")
      ->check(one_of({std::begin(kWords<PayloadSecurity>), std::end(kWords<PayloadSecurity>)}));
}

int run_command_line(CommandLine& app, int argc, char** argv, int& exit_status) {
  const Status ran = contained([&]() -> Status {
    exit_status = [&] {
      if (const auto unknown = unknown_subcommand(app, argc, argv)) {
        std::fprintf(stderr, "tributary: %s\n", unknown->c_str());
        return kExitUsage;
      }
      const auto status = app.parse(argc, argv);
      return status ? *status : exit_status;
    }();
    return {};
  });
  if (!ran) std::fprintf(stderr, "tributary: %s\n", ran.error().message.c_str());
  return ran ? exit_status : 1;
}

}  // namespace tributary::cli

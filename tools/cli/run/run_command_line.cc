// The command line of both programs of tools/cli.
#include <cstdio>

#include "common/daemon/daemon_thread.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/subcommand_names.h"
#include "tools/cluster/process.h"

namespace tributary::cli {

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
      ->check(one_of({std::begin(kPayloadSecurities), std::end(kPayloadSecurities)}));
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

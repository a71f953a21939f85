// tributary-server: one shard of the parameters; server 0 is the coordinator as well.
#include <string>

#include "common/base/command_line.h"
#include "common/base/version.h"
#include "common/config/config_toml.h"
#include "common/daemon/daemon_main.h"
#include "common/security/credentials.h"
#include "server/server_daemon.h"

int main(int argc, char** argv) {
  tributary::CommandLine app{
      "Holds one shard of a model's parameters and optimizer state, sums the nodes' gradients and applies the "
      "optimizer.\n"
      "Server 0 is also the coordinator that workers and the other servers connect to.\n\n"
      "Prints one line \"ready {...}\" when it serves: the coordinator knows it then. SIGTERM or SIGINT stops the jobs "
      "after a complete round, keeps "
      "their\n"
      "state in the store and exits with 0; a second signal, a second or more later, exits at once.",
      "tributary-server", 8};
  app.version(std::string("tributary-server ") + tributary::kVersion);
  std::string config_path;
  app.add_option("--config", config_path, "server.toml: addresses, store, limits, log (see configs/server.toml)")
      ->required()
      ->type_name("FILE");
  bool check = false;
  app.add_flag("--check-config", check, "read the file and what it names, say whether a daemon would take it, and end");
  if (const auto status = app.parse(argc, argv)) return *status;
  if (check)
    return tributary::report_check(config_path, tributary::check_start(tributary::load_server_config(config_path)));
  return tributary::run_daemon("tributary-server", [&] { return tributary::start_server(config_path); });
}

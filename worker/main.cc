// tributary-worker: one per node. Trainers attach to it; it reduces their gradients and talks to the servers.
#include <string>

#include "common/base/command_line.h"
#include "common/base/version.h"
#include "common/config/config_toml.h"
#include "common/daemon/daemon_main.h"
#include "common/devices/cuda_devices.h"
#include "common/security/credentials.h"
#include "worker/worker_daemon.h"

int main(int argc, char** argv) {
  tributary::CommandLine app{
      "Serves the trainers of one node: they attach over a Unix socket and share their gradients through memory; this "
      "daemon\n"
      "adds them up, exchanges them with the servers and hands the new parameters back.\n\n"
      "Prints one line \"ready {...}\" when it serves: the coordinator knows it then. SIGTERM or SIGINT lets the "
      "trainers finish their round, tells "
      "the\n"
      "coordinator and exits with 0; a second signal, a second or more later, exits at once.",
      "tributary-worker", 8};
  app.version(std::string("tributary-worker ") + tributary::kVersion);
  std::string config_path;
  app.add_option("--config", config_path, "worker.toml: coordinator, socket, limits, log (see configs/worker.toml)")
      ->required()
      ->type_name("FILE");
  bool check = false;
  app.add_flag("--check-config", check, "read the file and what it names, say whether a daemon would take it, and end");
  if (const auto status = app.parse(argc, argv)) return *status;
  if (check)
    return tributary::report_check(config_path, tributary::check_start(tributary::load_worker_config(config_path)));
  tributary::choose_cuda_settings();
  return tributary::run_daemon("tributary-worker", [&] { return tributary::start_worker(config_path); });
}

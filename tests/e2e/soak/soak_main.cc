// soak: the test of long-lived daemons, for a given time.
#include <cstdio>

#include "common/base/command_line.h"
#include "tests/e2e/soak/soak.h"

int main(int argc, char** argv) {
  using namespace tributary;
  e2e::SoakOptions options;
  options.bin_dir = TRIBUTARY_BIN_DIR;
  options.tell = [](const nlohmann::ordered_json& row) { std::printf("%s\n", row.dump().c_str()); };
  CommandLine app("Whether daemons stay as they are over thousands of snapshots, views and jobs.");
  app.footer(
      "\nPrints a JSON object for every phase and daemon: whether nothing grew by more than is allowed. "
      "tests/e2e/soak/soak.h says what is in it.");
  app.add_option("--snapshots", options.snapshots, "of one job, every four rounds")->capture_default_str();
  app.add_option("--views", options.views, "stops of one job, which is then gone on with")->capture_default_str();
  app.add_option("--jobs", options.jobs, "of a name each, which finish")->capture_default_str();
  app.add_option("--attaches", options.attaches, "of a rank whose neighbour never comes")->capture_default_str();
  app.add_option("--connections", options.connections, "to every port and socket")->capture_default_str();
  app.add_option("--servers", options.servers)->check(in_range(1, 64))->capture_default_str();
  app.add_option("--base-dir", options.base_dir, "for stores and logs (default: a folder in /tmp)");
  if (const auto status = app.parse(argc, argv)) return *status;
  const auto result = e2e::run_soak(options);
  if (!result) {
    std::fprintf(stderr, "soak: %s\n", result.error().message.c_str());
    return 1;
  }
  return result->at("flat").get<bool>() ? 0 : 1;
}

#include "tools/cli/daemons.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace tributary::cli {

Result<std::vector<std::string>> admin_addresses(const std::string& base_dir) {
  std::ifstream in(base_dir + "/cluster.json");
  if (!in) {
    return fail(ErrorCode::kNotFound, "no cluster is running in " + base_dir +
                                          " (it has no cluster.json); give the folder of a running "
                                          "`tributary up` with --base-dir, or daemons with --admin");
  }
  const auto json = nlohmann::json::parse(in, nullptr, false);
  std::vector<std::string> addresses;
  for (const char* kind : {"servers", "workers"}) {
    if (!json.is_object() || !json.contains(kind) || !json.at(kind).is_array()) continue;
    for (const auto& daemon : json.at(kind)) {
      const auto admin = daemon.is_object() ? daemon.find("admin") : daemon.end();
      if (daemon.is_object() && admin != daemon.end() && admin->is_string()) {
        addresses.push_back(admin->get<std::string>());
      }
    }
  }
  if (addresses.empty()) return fail(ErrorCode::kMalformed, base_dir + "/cluster.json names no daemons");
  return addresses;
}

}  // namespace tributary::cli

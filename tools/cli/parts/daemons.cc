#include "tools/cli/parts/daemons.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/config/json_text.h"
#include "common/security/keys.h"
#include "tools/cluster/run_folder.h"

namespace tributary::cli {

Result<std::vector<std::string>> admin_addresses(const std::string& base_dir) {
  std::ifstream in(base_dir + "/cluster.json");
  if (!in) {
    return fail(ErrorCode::kNotFound, "no cluster is running in " + base_dir +
                                          " (it has no cluster.json); give the folder of a running "
                                          "`tributary up` with --base-dir, or daemons with --admin");
  }
  const auto json = json_in(std::string(std::istreambuf_iterator<char>(in), {}));
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

Result<std::string> admin_token(const std::string& file, const std::string& base_dir) {
  if (!file.empty()) return read_token(file);
  if (const char* named = std::getenv("TRIBUTARY_ADMIN_TOKEN"); named && *named) return read_token(named);
  const std::string own = base_dir + "/" + kAdminTokenFile;
  std::error_code error;
  if (base_dir.empty() || !std::filesystem::exists(own, error)) return std::string();
  return read_token(own);
}

void add_token_option(CliCommand command, std::string& file) {
  command
      .add_option("--token", file,
                  "file with the token of the admin port (default: $TRIBUTARY_ADMIN_TOKEN, or that of --base-dir)")
      ->type_name("FILE");
}

}  // namespace tributary::cli

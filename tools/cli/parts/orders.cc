#include "tools/cli/parts/orders.h"

#include <chrono>
#include <cstdio>
#include <vector>

#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "tools/cli/parts/daemons.h"

namespace tributary::cli {
namespace {

constexpr std::chrono::milliseconds kOrderTimeout{10'000};

}  // namespace

void add_cluster_options(CliCommand command, Cluster& cluster) {
  command.add_option("--base-dir", cluster.base_dir, "folder of a running `tributary up`")->type_name("FOLDER");
  command.add_option("--coordinator-admin", cluster.admin, "admin address of server 0")->type_name("HOST:PORT");
  add_token_option(command, cluster.token_file);
}

Result<AdminPort> coordinator_admin(const Cluster& cluster) {
  Result<std::string> token = admin_token(cluster.token_file, cluster.base_dir);
  if (!token) return tl::unexpected(token.error());
  if (!cluster.admin.empty()) return AdminPort{cluster.admin, std::move(*token)};
  if (cluster.base_dir.empty()) {
    return fail(ErrorCode::kInvalidArgument, "which cluster? give --base-dir or --coordinator-admin");
  }
  const Result<std::vector<std::string>> addresses = admin_addresses(cluster.base_dir);
  if (!addresses) return tl::unexpected(addresses.error());
  // The daemon that has the coordinator says so: mostly the first, as servers come first, in their order.
  for (const std::string& address : *addresses) {
    const auto answer = http_get(address, "/status", kOrderTimeout);
    const auto status = answer ? ordered_json_in(*answer) : nlohmann::ordered_json();
    const bool has_it = status.is_object() && status.contains("coordinator") && status["coordinator"].contains("jobs");
    if (has_it) return AdminPort{address, std::move(*token)};
  }
  return AdminPort{addresses->front(), std::move(*token)};
}

Result<nlohmann::ordered_json> ask(const AdminPort& port, const std::string& path,
                                   const std::optional<std::string>& order) {
  const std::string& admin = port.address;
  const Result<HttpAnswer> answer = http_order(admin, path, order, kOrderTimeout, port.token);
  if (!answer) return tl::unexpected(answer.error());
  nlohmann::ordered_json json = ordered_json_in(answer->body);
  if (!json.is_object()) {
    return fail(ErrorCode::kMalformed, "http://" + admin + path + " did not answer with JSON; is that server 0?");
  }
  if (answer->status == 200) return json;
  const std::string text = json.value("error", std::string("no reason given"));
  if (answer->status == 404 && text.starts_with("there is no /")) {
    return fail(ErrorCode::kNotFound, admin + " takes no such orders; give the admin address of server 0");
  }
  return fail(json.value("retry", false) ? ErrorCode::kTimeout : ErrorCode::kUnavailable, text);
}

int complain(const char* command, const Error& why) {
  std::fprintf(stderr, "tributary %s: %s\n", command, why.message.c_str());
  return why.code == ErrorCode::kInvalidArgument ? 2 : 1;
}

}  // namespace tributary::cli

// Orders to the coordinator of a running cluster, over the admin endpoint of server 0
// (server/orders/checkpoint_http.h).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/base/command_line.h"
#include "common/base/result.h"

namespace tributary::cli {

struct Cluster {
  std::string base_dir, admin;  // either
  std::string token_file;       // of the admin port; empty: as admin_token() finds it
};
void add_cluster_options(CliCommand command, Cluster& cluster);

struct AdminPort {
  std::string address, token;
};
// Finds the admin port. kInvalidArgument: neither was given. kConfig: a token's file that cannot be used.
Result<AdminPort> coordinator_admin(const Cluster& cluster);

// Returns the coordinator's JSON object in answer to a POST of `order`, or to a GET; its refusal as an error (kTimeout:
// it may accept in a moment).
Result<nlohmann::ordered_json> ask(const AdminPort& admin, const std::string& path,
                                   const std::optional<std::string>& order);

// Prints "tributary COMMAND: why" on standard error. Returns the exit status: 2 for a wrong argument, else 1.
int complain(const char* command, const Error& why);

}  // namespace tributary::cli

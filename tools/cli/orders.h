// Orders to the coordinator of a running cluster, over the admin endpoint of server 0 (server/checkpoint_http.h).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/base/command_line.h"
#include "common/base/result.h"

namespace tributary::cli {

struct Cluster {
  std::string base_dir, admin;  // either
};
void add_cluster_options(CliCommand command, Cluster& cluster);

// kInvalidArgument: neither was given.
Result<std::string> coordinator_admin(const Cluster& cluster);

// A JSON object that the coordinator answered with to a POST of `order`, or to a GET; its refusal as an error
// (kTimeout: it may accept in a moment).
Result<nlohmann::ordered_json> ask(const std::string& admin, const std::string& path,
                                   const std::optional<std::string>& order);

}  // namespace tributary::cli

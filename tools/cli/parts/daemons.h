// Admin ports of a cluster's daemons.
#pragma once

#include <string>
#include <vector>

#include "common/base/command_line.h"
#include "common/base/result.h"

namespace tributary::cli {

// Reads admin addresses from a base folder's cluster.json (of a running `tributary up`). kNotFound: there is none.
Result<std::vector<std::string>> admin_addresses(const std::string& base_dir);

// Reads the token of admin ports: from `file`, else from the file that TRIBUTARY_ADMIN_TOKEN names, else from the base
// folder; "" if there is none of them. kConfig: a file that cannot be used.
Result<std::string> admin_token(const std::string& file, const std::string& base_dir);
void add_token_option(CliCommand command, std::string& file);

}  // namespace tributary::cli

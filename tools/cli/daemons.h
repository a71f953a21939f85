// Where the daemons of a cluster answer.
#pragma once

#include <string>
#include <vector>

#include "common/base/command_line.h"
#include "common/base/result.h"

namespace tributary::cli {

// Admin addresses in a base folder's cluster.json (of a running `tributary up`). kNotFound: there is none.
Result<std::vector<std::string>> admin_addresses(const std::string& base_dir);

// The token of their admin ports: of the file that is named, else that TRIBUTARY_ADMIN_TOKEN names, else of the base
// folder; "" if there is none of them. kConfig: a file that cannot be used.
Result<std::string> admin_token(const std::string& file, const std::string& base_dir);
void add_token_option(CliCommand command, std::string& file);

}  // namespace tributary::cli

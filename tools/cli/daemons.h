// Where the daemons of a cluster answer.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary::cli {

// Admin addresses in a base folder's cluster.json (of a running `tributary up`). kNotFound: there is none.
Result<std::vector<std::string>> admin_addresses(const std::string& base_dir);

}  // namespace tributary::cli

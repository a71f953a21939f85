// The tables of a configuration in JSON, for programs that write one.
#pragma once

#include <string_view>

#include "common/base/result.h"
#include "common/config/toml_library.h"

namespace tributary {

// {"optimizer": {"lr": 0.1}, "groups": [{"lr": 0.2}]} as the TOML of the same tables. Its nodes have no lines.
// kConfig with source and place if `text` is no JSON object, or one that is nested more deeply than any job.
Result<toml::table> tables_of_json(std::string_view text, std::string_view source_name);

}  // namespace tributary

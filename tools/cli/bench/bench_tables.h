// A measurement's result in words: a JSON object as lines and tables.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tributary::cli {

// An object's values are lines of their own, lists of objects are tables, and so are lists in those. Names of values in
// objects are joined with dots. columns: of tables, comma-separated, of those that a table has; empty: all. Long lists
// of numbers are left out.
std::string tables_of(const nlohmann::ordered_json& row, const std::string& columns);

}  // namespace tributary::cli

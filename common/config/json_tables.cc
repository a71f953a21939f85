#include "common/config/json_tables.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/config/shallow_json.h"

namespace tributary {
namespace {

using nlohmann::json;  // objects are std::map: keys come out sorted

toml::table table_of(const json& object);

toml::array array_of(const json& values);

// Calls add(VALUE) with the value in TOML. Null, and whole numbers beyond TOML's, become words: no key takes them.
template <class Add>
void add_value(const json& value, Add&& add) {
  if (value.is_object()) return add(table_of(value));
  if (value.is_array()) return add(array_of(value));
  if (value.is_string()) return add(value.get<std::string>());
  if (value.is_boolean()) return add(value.get<bool>());
  if (value.is_number_float()) return add(value.get<double>());
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargest) return add(value.dump());
  if (value.is_number_integer()) return add(value.get<std::int64_t>());
  add(std::string("null"));
}

toml::table table_of(const json& object) {
  toml::table table;
  for (const auto& [key, value] : object.items()) {
    add_value(value, [&table, &name = key](auto&& node) { table.insert(name, std::move(node)); });
  }
  return table;
}

toml::array array_of(const json& values) {
  toml::array array;
  for (const json& value : values) {
    add_value(value, [&array](auto&& node) { array.push_back(std::move(node)); });
  }
  return array;
}

}  // namespace

Result<toml::table> tables_of_json(std::string_view text, std::string_view source_name) {
  const Result<json> root = shallow_json_object(text);
  if (!root) return fail(root.error().code, std::string(source_name) + ": " + root.error().message);
  return table_of(*root);
}

}  // namespace tributary

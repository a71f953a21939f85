#include "tools/cli/bench/bench_tables.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "common/base/printed.h"
#include "tools/cli/parts/table.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::pair<std::string, std::string>>;  // name and value, in the order of the object

constexpr std::size_t kShortList = 8;

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  if (!value.is_number_float()) return value.dump();
  const double number = value.get<double>();
  return std::fabs(number) >= 1e4 ? printed("%.0f", number) : printed("%.4g", number);
}

bool is_table(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_object();
}

// The object's plain values; its tables are added to `tables` with their names.
Cells cells_of(const Json& object, const std::string& prefix,
               std::vector<std::pair<std::string, const Json*>>& tables) {
  Cells cells;
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + key;
    if (value.is_object()) {
      const Cells inner = cells_of(value, name + ".", tables);
      cells.insert(cells.end(), inner.begin(), inner.end());
    } else if (is_table(value)) {
      tables.emplace_back(name, &value);
    } else if (!value.is_array()) {
      cells.emplace_back(name, text_of(value));
    } else if (value.size() <= kShortList) {
      std::string list;
      for (const Json& one : value) list += (list.empty() ? "" : " ") + text_of(one);
      cells.emplace_back(name, list);
    }
  }
  return cells;
}

std::string indented(const std::string& text, const std::string& by) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += by + line + "\n";
  return out;
}

std::string table_of(const Json& rows, const std::vector<std::string>& wanted);

std::string object_of(const Json& object, const std::vector<std::string>& wanted) {
  std::vector<std::pair<std::string, const Json*>> tables;
  const Cells cells = cells_of(object, "", tables);
  std::size_t width = 0;
  for (const auto& [name, value] : cells) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : cells) out += name + std::string(width - name.size() + 2, ' ') + value + "\n";
  for (const auto& [name, rows] : tables) out += name + "\n" + indented(table_of(*rows, wanted), "  ");
  return out;
}

std::string table_of(const Json& rows, const std::vector<std::string>& wanted) {
  std::vector<Cells> all;
  std::vector<std::string> header;
  bool nested = false;
  for (const Json& row : rows) {
    std::vector<std::pair<std::string, const Json*>> tables;
    all.push_back(cells_of(row, "", tables));
    nested |= std::ranges::any_of(tables, [](const auto& table) { return table.second->size() > 1; });
    for (const auto& [name, value] : all.back()) {
      if (std::ranges::find(header, name) == header.end()) header.push_back(name);
    }
  }
  std::vector<std::string> columns;
  for (const std::string& name : wanted) {
    if (std::ranges::find(header, name) != header.end()) columns.push_back(name);
  }
  if (columns.empty() && nested) {  // what is in the rows is what matters
    std::string out;
    for (const Json& row : rows) out += object_of(row, wanted);
    return out;
  }
  if (columns.empty()) columns = header;
  Table table(columns);
  for (const Cells& cells : all) {
    std::vector<std::string> line;
    for (const std::string& name : columns) {
      const auto found = std::ranges::find(cells, name, &Cells::value_type::first);
      line.push_back(found == cells.end() ? "" : found->second);
    }
    table.add(std::move(line));
  }
  return table.text();
}

}  // namespace

std::string tables_of(const Json& row, const std::string& columns) {
  std::vector<std::string> wanted;
  std::istringstream names(columns);
  for (std::string name; std::getline(names, name, ',');) wanted.push_back(name);
  return object_of(row, wanted);
}

}  // namespace tributary::cli

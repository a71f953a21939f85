#define TOML_IMPLEMENTATION  // before the first include of toml++
#include "common/config/toml_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "common/base/edit_distance.h"
#include "common/config/json_tables.h"
#include "common/math/encoding.h"

namespace tributary {
namespace {

constexpr std::size_t kShownValue = 80;  // characters of a value in a message

std::string value_text(const toml::node& node) {
  std::string text;
  if (const auto number = node.value_exact<double>()) {
    char shortest[32];
    text.assign(shortest, std::to_chars(shortest, shortest + sizeof(shortest), *number).ptr);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";  // as TOML writes it, and unlike the integer
  } else {
    std::ostringstream out;
    node.visit([&out](const auto& n) { out << n; });
    text = out.str();
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kShownValue) text = text.substr(0, kShownValue) + "...";
  return text;
}

std::string type_text(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::table:
      return "a table";
    default:
      return "a date or time";
  }
}

// The known word that was probably meant: the nearest, unless it is too far for a slip of the finger.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kLongestName = 64;  // of ours; bounds the work on a hostile file
  if (word.size() > kLongestName) return std::nullopt;
  std::optional<std::string> best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const std::string& k : known) {
    const std::size_t distance = edit_distance(word, k);
    const std::size_t slip = k.size() <= 3 ? 1 : std::max<std::size_t>(2, k.size() / 3);
    if (distance < best_distance && distance <= slip) {
      best = k;
      best_distance = distance;
    }
  }
  return best;
}

std::string shown_name(std::string_view name) {
  return name.size() > kShownValue ? std::string(name.substr(0, kShownValue)) + "..." : std::string(name);
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : ", ") + w;
  return out;
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

bool bare_word(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-' || c == '/';
  });
}

// toml++ reports by exception; nothing above this function sees one.
Result<toml::table> parse_toml(std::string_view text, std::string_view source_name) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    const toml::source_position at = e.source().begin;
    return fail(ErrorCode::kConfig, std::string(source_name) + ":" + std::to_string(at.line) +
                                        ": not valid TOML at column " + std::to_string(at.column) + ": " +
                                        std::string(e.description()));
  }
}

}  // namespace

Result<TomlReader> TomlReader::parse(std::string_view text, std::string_view source_name) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && text[first] == '{';
  Result<toml::table> table = is_json ? tables_of_json(text, source_name) : parse_toml(text, source_name);
  if (!table) return tl::unexpected(table.error());
  return TomlReader(std::move(*table), std::string(source_name));
}

TomlReader::TomlReader(toml::table table, std::string source_name)
    : table_(std::move(table)), source_name_(std::move(source_name)) {}

Status TomlReader::override_with(std::string_view assignment) {
  const std::string where = "override '" + shown_name(assignment) + "'";
  const std::size_t equals = assignment.find('=');
  const std::string_view name = trimmed(assignment.substr(0, equals));
  const std::size_t dot = name.find('.');
  const bool form_ok = equals != std::string_view::npos && dot != std::string_view::npos && dot > 0 &&
                       dot + 1 < name.size() && bare_word(name);
  const std::string_view value = form_ok ? trimmed(assignment.substr(equals + 1)) : std::string_view();
  if (value.empty() || value.find_first_of("\r\n") != std::string_view::npos) {
    return fail(ErrorCode::kConfig, where + ": must be section.key=value, as in optimizer.lr=0.1");
  }

  Result<toml::table> parsed = parse_toml("value = " + std::string(value) + "\n", where);
  if (!parsed && bare_word(value)) parsed = toml::table{{"value", std::string(value)}};
  if (!parsed) {
    return fail(ErrorCode::kConfig, where + ": the value " + shown_name(value) +
                                        " is not valid TOML; write a number, true, false, \"text\" or [1, 2]");
  }

  const std::string section(name.substr(0, dot)), key(name.substr(dot + 1));
  if (!table_.contains(section)) table_.insert(section, toml::table{});
  toml::table* table = table_.get_as<toml::table>(section);
  if (!table) return fail(ErrorCode::kConfig, where + ": " + section + " is not a section in " + source_name_);
  parsed->get("value")->visit([&](auto& node) { table->insert_or_assign(key, std::move(node)); });
  overridden_[dotted_key(section, key)] = overrides_.size();
  overrides_.push_back(where);
  return {};
}

std::size_t TomlReader::tables(std::string_view name) {
  const toml::array* array = table_.get_as<toml::array>(name);
  if (!array || array->empty() || !array->is_array_of_tables()) return 0;
  // Moved, not copied: a copy would not know its lines.
  toml::array taken = std::move(*table_.get_as<toml::array>(name));
  table_.erase(name);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    table_.insert(std::string(name) + "[" + std::to_string(i) + "]", std::move(*taken[i].as_table()));
  }
  return taken.size();
}

const toml::node* TomlReader::look_up(std::string_view section, std::string_view key) {
  auto [entry, added] = known_.try_emplace(std::string(section));
  entry->second.emplace_back(key);
  const toml::table* table = table_.get_as<toml::table>(section);
  const toml::node* node = table ? table->get(key) : nullptr;
  if (node) given_.insert(dotted_key(section, key));
  return node;
}

void TomlReader::operator()(std::string_view section, std::string_view key, std::string& out) {
  const toml::node* node = look_up(section, key);
  if (!node) return;
  if (const auto value = node->value_exact<std::string>()) {
    out = *value;
  } else {
    unreadable(section, key, "must be a string in quotes, is " + type_text(*node));
  }
}

void TomlReader::operator()(std::string_view section, std::string_view key, bool& out) {
  const toml::node* node = look_up(section, key);
  if (!node) return;
  if (const auto value = node->value_exact<bool>()) {
    out = *value;
  } else {
    unreadable(section, key, "must be true or false, is " + type_text(*node));
  }
}

bool TomlReader::read_integer(std::string_view section, std::string_view key, std::uint64_t limit, std::uint64_t& out) {
  const toml::node* node = look_up(section, key);
  if (!node) return false;
  const auto value = node->value_exact<std::int64_t>();
  if (!value) {
    unreadable(section, key, "must be a whole number, is " + type_text(*node));
    return false;
  }
  if (*value < 0 || static_cast<std::uint64_t>(*value) > limit) {
    unreadable(section, key, "must be from 0 to " + std::to_string(limit));
    return false;
  }
  out = static_cast<std::uint64_t>(*value);
  return true;
}

void TomlReader::operator()(std::string_view section, std::string_view key, std::uint16_t& out) {
  std::uint64_t value = 0;
  if (read_integer(section, key, std::numeric_limits<std::uint16_t>::max(), value))
    out = static_cast<std::uint16_t>(value);
}

void TomlReader::operator()(std::string_view section, std::string_view key, std::uint32_t& out) {
  std::uint64_t value = 0;
  if (read_integer(section, key, std::numeric_limits<std::uint32_t>::max(), value))
    out = static_cast<std::uint32_t>(value);
}

void TomlReader::operator()(std::string_view section, std::string_view key, std::uint64_t& out) {
  std::uint64_t value = 0;
  if (read_integer(section, key, std::numeric_limits<std::int64_t>::max(), value)) out = value;  // TOML's own limit
}

void TomlReader::operator()(std::string_view section, std::string_view key, double& out) {
  const toml::node* node = look_up(section, key);
  if (!node) return;
  if (const auto value = node->value_exact<double>()) {
    out = *value;
  } else if (const auto whole = node->value_exact<std::int64_t>()) {
    out = static_cast<double>(*whole);
  } else {
    unreadable(section, key, "must be a number, is " + type_text(*node));
  }
}

void TomlReader::operator()(std::string_view section, std::string_view key, std::vector<std::uint32_t>& out) {
  const toml::node* node = look_up(section, key);
  if (!node) return;
  std::vector<std::uint32_t> values;
  bool ok = node->is_array();
  if (ok) {
    for (const toml::node& element : *node->as_array()) {
      const auto value = element.value_exact<std::int64_t>();
      ok = ok && value && *value >= 0 && *value <= std::numeric_limits<std::uint32_t>::max();
      if (ok) values.push_back(static_cast<std::uint32_t>(*value));
    }
  }
  if (ok) {
    out = std::move(values);
  } else {
    unreadable(section, key, "must be an array of whole numbers, as in [256, 128]");
  }
}

void TomlReader::operator()(std::string_view section, std::string_view key, std::vector<std::string>& out) {
  const toml::node* node = look_up(section, key);
  if (!node) return;
  std::vector<std::string> values;
  if (const auto one = node->value_exact<std::string>()) {
    out = one->empty() ? std::vector<std::string>() : std::vector<std::string>{*one};
    return;
  }
  bool ok = node->is_array();
  if (ok) {
    for (const toml::node& element : *node->as_array()) {
      const auto value = element.value_exact<std::string>();
      ok = ok && value;
      if (ok) values.push_back(*value);
    }
  }
  if (ok) {
    out = std::move(values);
  } else {
    unreadable(section, key, "must be a string, or an array of strings, as in [\"a\", \"b\"]");
  }
}

void TomlReader::operator()(std::string_view section, std::string_view key, EncodingSpec& out) {
  const toml::node* node = look_up(section, key);
  if (!node) return;
  const auto name = node->value_exact<std::string>();
  const std::optional<EncodingSpec> spec = name ? parse_encoding(*name) : std::nullopt;
  if (spec) {
    out = *spec;
  } else {
    unreadable(section, key, "must be one of " + encodings_for(key));
  }
}

void TomlReader::unreadable(std::string_view section, std::string_view key, const std::string& message) {
  const std::string dotted = dotted_key(section, key);
  const toml::node& node = *find(dotted);
  unreadable_.insert(dotted);
  add(dotted, node.source().begin.line, dotted + " = " + value_text(node) + ": " + message);
}

void TomlReader::add(const std::string& dotted, std::uint32_t line, const std::string& text) {
  if (const auto it = overridden_.find(dotted); it != overridden_.end()) {
    complaints_.push_back({true, static_cast<std::uint32_t>(it->second), overrides_[it->second] + ": " + text});
  } else {
    const bool has_lines = table_.source().begin.line > 0;  // JSON has none
    complaints_.push_back(
        {false, line, source_name_ + (has_lines ? ":" + std::to_string(line) : std::string()) + ": " + text});
  }
}

const toml::node* TomlReader::find(std::string_view dotted) const {
  const std::size_t dot = dotted.find('.');
  const toml::table* table = table_.get_as<toml::table>(dotted.substr(0, dot));
  return table && dot != std::string_view::npos ? table->get(dotted.substr(dot + 1)) : nullptr;
}

std::uint32_t TomlReader::line_of(std::string_view dotted) const {
  if (const toml::node* node = find(dotted)) return node->source().begin.line;
  const toml::table* section = table_.get_as<toml::table>(dotted.substr(0, dotted.find('.')));
  return section ? std::max<std::uint32_t>(1, section->source().begin.line) : 1;
}

void TomlReader::complain(const Fault& fault) {
  if (unreadable_.contains(fault.key) || unreadable_.contains(fault.because_of)) return;
  if (const toml::node* node = find(fault.key)) {
    return add(fault.key, line_of(fault.key), fault.key + " = " + value_text(*node) + ": " + fault.message);
  }
  // Not given: point at the key that makes it necessary, if that is given.
  const std::string& place = !fault.because_of.empty() && find(fault.because_of) ? fault.because_of : fault.key;
  add(place, line_of(place), fault.key + " is not set: " + fault.message);
}

void TomlReader::refuse_unknown_section(const std::string& name, const toml::node& node) {
  const std::uint32_t line = std::max<std::uint32_t>(1, node.source().begin.line);
  std::vector<std::string> sections;
  for (const auto& [section, keys] : known_) sections.push_back(section);
  std::string cure = "; the sections are " + joined(sections);
  const std::optional<std::string> meant = nearest(name, sections);
  if (!node.is_table()) {
    for (const auto& [section, keys] : known_) {
      if (std::find(keys.begin(), keys.end(), name) != keys.end())
        cure = "; '" + name + "' belongs under [" + section + "]";
    }
    return add(name, line, "key '" + shown_name(name) + "' is in no section" + cure);
  }
  if (meant) {
    cure = "; did you mean [" + *meant + "]?";
    for (const std::string& key : known_.at(*meant)) unreadable_.insert(dotted_key(*meant, key));
  }
  // A section that only an override names is reported as that override.
  std::string place = name;
  for (const auto& [dotted, index] : overridden_) {
    if (dotted.starts_with(name + ".") && node.source().begin.line == 0) place = dotted;
  }
  add(place, line, "unknown section [" + shown_name(name) + "]" + cure);
}

void TomlReader::refuse_unknown_key(const std::string& section, const std::string& key, const toml::node& node) {
  const std::vector<std::string>& keys = known_.at(section);
  std::string cure = "; the keys of [" + section + "] are " + joined(keys);
  if (const std::optional<std::string> meant = nearest(key, keys)) {
    cure = "; did you mean '" + *meant + "'?";
    if (!find(dotted_key(section, *meant))) unreadable_.insert(dotted_key(section, *meant));
  } else {
    for (const auto& [other, other_keys] : known_) {
      if (std::find(other_keys.begin(), other_keys.end(), key) != other_keys.end()) {
        cure = "; '" + key + "' belongs under [" + other + "]";
      }
    }
  }
  add(dotted_key(section, key), node.source().begin.line,
      "unknown key '" + shown_name(key) + "' in [" + section + "]" + cure);
}

void TomlReader::check_unknown() {
  for (const auto& [name_key, node] : table_) {
    const std::string name(name_key.str());
    const auto known = known_.find(name);
    if (known == known_.end()) {
      refuse_unknown_section(name, node);
    } else if (const toml::table* table = node.as_table()) {
      for (const auto& [key, value] : *table) {
        const std::string key_name(key.str());
        if (std::find(known->second.begin(), known->second.end(), key_name) == known->second.end()) {
          refuse_unknown_key(name, key_name, value);
        }
      }
    } else {
      add(name, node.source().begin.line,
          "'" + name + "' is a section: write [" + name + "] on a line of its own, its keys below it");
    }
  }
}

Status TomlReader::finish() {
  const auto first =
      std::min_element(complaints_.begin(), complaints_.end(), [](const Complaint& a, const Complaint& b) {
        return std::pair(a.from_override, a.line) < std::pair(b.from_override, b.line);
      });
  if (first == complaints_.end()) return {};
  return fail(ErrorCode::kConfig, first->text);
}

}  // namespace tributary

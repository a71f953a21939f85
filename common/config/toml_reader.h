// Reads one TOML document key by key into typed members, and keeps each key's line for complaints. It does not know the
// meaning of the keys: the schemas are in config_toml.cc, the permitted values in config_check.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/config/config_check.h"
#include "common/config/toml_library.h"

namespace tributary {

class TomlReader {
 public:
  // kConfig with file, line and column if `text` is no TOML. If its first character is '{' it is the same tables as
  // JSON, whose complaints have no lines.
  static Result<TomlReader> parse(std::string_view text, std::string_view source_name);

  // Returns the number of tables of the array [[name]]; from then on they are the sections "name[0]", "name[1]" ...,
  // which overrides cannot name.
  std::size_t tables(std::string_view name);

  bool has_section(std::string_view name) const { return table_.contains(name); }

  // Sets a key from "section.key=value", in place of the document's value. REQUIRES: before the first read.
  Status override_with(std::string_view assignment);

  // Reads a key, which thereby becomes a known one. Absent: `out` is left alone. A value of another type, or out of the
  // member's range, is a complaint, and leaves `out` alone.
  void operator()(std::string_view section, std::string_view key, std::string& out);
  void operator()(std::string_view section, std::string_view key, bool& out);
  void operator()(std::string_view section, std::string_view key, std::uint16_t& out);
  void operator()(std::string_view section, std::string_view key, std::uint32_t& out);
  void operator()(std::string_view section, std::string_view key, std::uint64_t& out);
  void operator()(std::string_view section, std::string_view key, double& out);
  void operator()(std::string_view section, std::string_view key, std::vector<std::uint32_t>& out);
  void operator()(std::string_view section, std::string_view key, std::vector<std::string>& out);  // or one string
  void operator()(std::string_view section, std::string_view key, EncodingSpec& out);
  template <IsChoice Choice>
  void operator()(std::string_view section, std::string_view key, Choice& out) {
    std::string text = word(out);
    (*this)(section, key, text);
    const std::optional<Choice> choice = choice_of<Choice>(text);
    if (choice) out = *choice;
    if (!choice) unreadable(section, key, must_be_one_of(words_of(out)));
  }

  // Known keys that the document gives, dotted.
  const std::set<std::string>& given() const { return given_; }

  // After all reads and before complain(): unknown sections and keys become complaints.
  void check_unknown();
  // Turns a fault of the values into a complaint, unless one of its keys was unreadable or is probably the misspelt
  // one: the complaint would be about a default that the user did not choose.
  void complain(const Fault& fault);

  // The complaint on the lowest line, or success.
  Status finish();

 private:
  struct Complaint {
    bool from_override = false;  // after those of the file
    std::uint32_t line = 0;      // or the override's position
    std::string text;
  };
  TomlReader(toml::table table, std::string source_name);

  // Makes the key known; its node, or null if absent.
  const toml::node* look_up(std::string_view section, std::string_view key);
  // An integer within [0, limit], or a complaint.
  bool read_integer(std::string_view section, std::string_view key, std::uint64_t limit, std::uint64_t& out);
  void unreadable(std::string_view section, std::string_view key, const std::string& message);  // REQUIRES: it is there
  void add(const std::string& dotted, std::uint32_t line, const std::string& text);
  void refuse_unknown_section(const std::string& name, const toml::node& node);
  void refuse_unknown_key(const std::string& section, const std::string& key, const toml::node& node);
  std::uint32_t line_of(std::string_view dotted) const;  // of the key, else of its section, else 1
  const toml::node* find(std::string_view dotted) const;

  toml::table table_;
  std::string source_name_;
  std::map<std::string, std::vector<std::string>, std::less<>> known_;  // keys by section, in the order of the reads
  std::set<std::string> given_;
  std::set<std::string> unreadable_;
  std::vector<std::string> overrides_;
  std::map<std::string, std::size_t> overridden_;  // dotted key -> index into overrides_
  std::vector<Complaint> complaints_;
};

}  // namespace tributary

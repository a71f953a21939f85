// HTML that is put together from words and tables. Words come from files, trainers and the network: text() leaves no
// mark-up in them, and there is no other way to make an Html of a text that is not ours.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tributary {

// The text as HTML has it, between tags and in attributes that are in quotation marks.
std::string escaped(std::string_view words);

class Html {
 public:
  Html() = default;
  static Html text(std::string_view words) { return Html(escaped(words)); }
  // <tag class="kind">inside</tag>; kind "": without a class.
  static Html element(const char* tag, std::string_view kind, const Html& inside);
  // A text that the page's script replaces: attributes with their values.
  static Html live(std::string_view words, const std::vector<std::pair<const char*, std::string>>& attributes);
  // Parts of a whole, side by side, each as wide as its share and drawn as its class says.
  static Html bar(const std::vector<std::pair<const char*, double>>& parts);

  Html& operator+=(const Html& more);
  const std::string& code() const { return code_; }

 private:
  explicit Html(std::string code) : code_(std::move(code)) {}
  friend class HtmlTable;

  std::string code_;
};

// A table with a heading. The first column names the rows.
class HtmlTable {
 public:
  HtmlTable(const char* heading, std::vector<const char*> columns);
  // REQUIRES: as many cells as there are columns.
  void add(const std::vector<Html>& cells);
  // Nothing if it has no rows.
  Html html() const;

 private:
  const char* const heading_;
  const std::vector<const char*> columns_;
  std::string rows_;
};

}  // namespace tributary

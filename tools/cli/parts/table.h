// Text in columns as wide as their widest cell.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace tributary::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  // REQUIRES: as many cells as the header has. Control characters, which names may have and terminals obey, become '?'.
  void add(std::vector<std::string> row) {
    for (std::string& cell : row) {
      std::ranges::replace_if(
          cell, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    }
    rows_.push_back(std::move(row));
  }
  std::string text() const {
    std::vector<std::size_t> widths(rows_[0].size(), 0);
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string out;
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        out += row[i] + std::string(i + 1 < row.size() ? widths[i] - row[i].size() + 2 : 0, ' ');
      }
      out += '\n';
    }
    return out;
  }
  // With an empty line behind it; nothing if it has no rows.
  void print() const {
    if (rows_.size() > 1) std::printf("%s\n", text().c_str());
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tributary::cli

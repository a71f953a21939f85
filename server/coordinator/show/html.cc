#include "server/coordinator/show/html.h"

#include <cmath>

#include "common/base/printed.h"

namespace tributary {

std::string escaped(std::string_view words) {
  std::string html;
  for (const char c : words) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

Html Html::element(const char* tag, std::string_view kind, const Html& inside) {
  const std::string name = tag, attribute = kind.empty() ? "" : " class=\"" + escaped(kind) + "\"";
  return Html("<" + name + attribute + ">" + inside.code_ + "</" + name + ">");
}

Html Html::live(std::string_view words, const std::vector<std::pair<const char*, std::string>>& attributes) {
  std::string html = "<span";
  for (const auto& [name, value] : attributes) html += std::string(" ") + name + "=\"" + escaped(value) + "\"";
  return Html(html + ">" + escaped(words) + "</span>");
}

Html Html::bar(const std::vector<std::pair<const char*, double>>& parts) {
  constexpr double kWidth = 160.0;
  double total = 0.0;
  for (const auto& [kind, part] : parts) total += part;
  if (!(total > 0.0) || !std::isfinite(total)) return {};
  std::string html = "<svg width=\"160\" height=\"14\" viewBox=\"0 0 160 14\" aria-hidden=\"true\">";
  double x = 0.0;
  for (const auto& [kind, part] : parts) {
    const double width = kWidth * part / total;
    html += printed("<rect class=\"%s\" x=\"%.1f\" y=\"0\" width=\"%.1f\" height=\"14\"/>", kind, x, width);
    x += width;
  }
  return Html(html + "</svg>");
}

Html& Html::operator+=(const Html& more) {
  code_ += more.code_;
  return *this;
}

HtmlTable::HtmlTable(const char* heading, std::vector<const char*> columns)
    : heading_(heading), columns_(std::move(columns)) {}

void HtmlTable::add(const std::vector<Html>& cells) {
  rows_ += "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    rows_ += i == 0 ? "<th scope=\"row\">" : "<td data-column=\"" + escaped(columns_[i]) + "\">";
    rows_ += cells[i].code() + (i == 0 ? "</th>" : "</td>");
  }
  rows_ += "</tr>\n";
}

Html HtmlTable::html() const {
  if (rows_.empty()) return {};
  const std::string name = escaped(heading_);
  std::string html = "<section aria-label=\"" + name + "\"><h2>" + name + "</h2>\n<table><thead><tr>";
  for (const char* column : columns_) html += "<th scope=\"col\">" + escaped(column) + "</th>";
  return Html(html + "</tr></thead><tbody>\n" + rows_ + "</tbody></table></section>\n");
}

}  // namespace tributary

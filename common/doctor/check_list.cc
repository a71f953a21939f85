#include "common/doctor/check_list.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/base/printed.h"

namespace tributary {

void CheckList::amount(std::string name, std::uint64_t value, std::uint64_t least, std::uint64_t good,
                       std::string found, std::string advice) {
  const CheckLevel level = value < least ? CheckLevel::kProblem : value < good ? CheckLevel::kNote : CheckLevel::kOk;
  add(std::move(name), level, std::move(found), level == CheckLevel::kOk ? std::string() : std::move(advice));
}

void append(std::vector<Check>& to, const std::vector<Check>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

const char* level_name(CheckLevel level) {
  static constexpr const char* kNames[] = {"ok", "note", "problem"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(CheckLevel::kProblem) + 1);
  const auto number = static_cast<std::size_t>(level);
  return number < std::size(kNames) ? kNames[number] : "problem";
}

std::size_t count_of(const std::vector<Check>& checks, CheckLevel level) {
  return static_cast<std::size_t>(std::ranges::count(checks, level, &Check::level));
}

bool has_problem(const std::vector<Check>& checks) {
  return count_of(checks, CheckLevel::kProblem) > 0;
}

namespace {

// Replaces control characters, because peers' texts may contain any and go to a terminal.
std::string shown(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < ' ' || c == 0x7F; }, '?');
  return text;
}

}  // namespace

std::string checks_text(const std::vector<Check>& checks, bool brief) {
  std::string text, section;
  for (const Check& check : checks) {
    if (brief && check.level == CheckLevel::kOk) continue;
    if (check.section != section) text += (text.empty() ? "" : "\n") + shown(check.section) + "\n";
    section = check.section;
    text += printed("  %-8s %-20s ", level_name(check.level), shown(check.name).c_str()) + shown(check.found) + "\n";
    if (!check.advice.empty()) text += std::string(11, ' ') + "-> " + shown(check.advice) + "\n";
  }
  return text;
}

std::string counts_text(const std::vector<Check>& checks) {
  return counted(count_of(checks, CheckLevel::kProblem), "problem") + ", " +
         counted(count_of(checks, CheckLevel::kNote), "note");
}

nlohmann::ordered_json checks_json(const std::vector<Check>& checks) {
  auto lines = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    lines.push_back({{"section", check.section},
                     {"name", check.name},
                     {"level", level_name(check.level)},
                     {"found", check.found},
                     {"advice", check.advice}});
  }
  return lines;
}

}  // namespace tributary

#include "common/daemon/log_line.h"

#include <cctype>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "common/config/json_text.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kTimeText = 29;

bool begins_word(std::string_view text, std::size_t at) {
  return at == 0 || std::isalnum(static_cast<unsigned char>(text[at - 1])) == 0;
}

// The number after the word, of the first place where there is one.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::string_view rest = text.substr(at + word.size());
    std::uint64_t number = 0;
    if (begins_word(text, at) && std::from_chars(rest.data(), rest.data() + rest.size(), number).ec == std::errc())
      return number;
  }
  return {};
}

std::string quoted_after(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t from = at + word.size();
    const std::size_t to = text.find('\'', from);
    if (begins_word(text, at) && to != std::string_view::npos) return std::string(text.substr(from, to - from));
  }
  return {};
}

std::string peer_in(std::string_view text) {
  for (const std::string_view kind : {"server ", "node ", "rank "}) {
    if (const auto number = number_after(text, kind)) return std::string(kind) + std::to_string(*number);
  }
  const std::string name = quoted_after(text, "worker '");
  return name.empty() ? name : "worker " + name;
}

}  // namespace

std::string job_in(std::string_view text) {
  return quoted_after(text, "job '");
}

std::string to_json(const LogLine& line) {
  Json out = {{"time", line.time}, {"level", line.level}, {"daemon", line.daemon}};
  if (const std::string job = job_in(line.text); !job.empty()) out["job"] = job;
  if (const auto view = number_after(line.text, "view ")) out["view"] = *view;
  if (const auto round = number_after(line.text, "round ")) out["round"] = *round;
  if (const std::string peer = peer_in(line.text); !peer.empty()) out["peer"] = peer;
  out["text"] = line.text;
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<LogLine> parse_log_line(std::string_view line) {
  if (line.starts_with('{')) {
    const Json json = ordered_json_in(line);
    const auto text = [&](const char* key) {
      const auto at = json.find(key);
      return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
    };
    if (!json.is_object() || !time_of(text("time"))) return {};
    return LogLine{text("time"), text("level"), text("daemon"), text("text")};
  }
  const std::string_view time = line.substr(0, kTimeText);
  if (line.size() <= kTimeText || line[kTimeText] != ' ' || !time_of(time)) return {};
  std::string_view rest = line.substr(kTimeText + 1);
  const std::size_t level = rest.find(' '), open = rest.find('['), close = rest.find("] ");
  if (level == std::string_view::npos || open == std::string_view::npos || close == std::string_view::npos ||
      rest.substr(level, open - level).find_first_not_of(' ') != std::string_view::npos || close < open)
    return {};
  return LogLine{std::string(time), std::string(rest.substr(0, level)),
                 std::string(rest.substr(open + 1, close - open - 1)), std::string(rest.substr(close + 2))};
}

std::optional<std::int64_t> time_of(std::string_view time) {
  if (time.size() != kTimeText) return {};
  const auto number = [&](std::size_t at, std::size_t digits) {
    int value = -1;
    const char* const end = time.data() + at + digits;
    const auto [after, error] = std::from_chars(time.data() + at, end, value);
    return error == std::errc() && after == end ? value : -1;
  };
  constexpr std::string_view kForm = "dddd-dd-ddTdd:dd:dd.ddd.dd:dd";
  static_assert(kForm.size() == kTimeText);
  for (std::size_t i = 0; i < kTimeText; ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(time[i])) != 0;
    if (i == 23 ? time[i] != '+' && time[i] != '-' : kForm[i] == 'd' ? !digit : time[i] != kForm[i]) return {};
  }
  const std::chrono::year_month_day day(std::chrono::year(number(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2))));
  if (!day.ok()) return {};
  const std::int64_t minutes =
      std::chrono::sys_days(day).time_since_epoch().count() * 1440LL + number(11, 2) * 60 + number(14, 2);
  const int east = (number(24, 2) * 60 + number(27, 2)) * (time[23] == '-' ? -1 : 1);
  return (minutes - east) * 60'000 + number(17, 2) * 1000 + number(20, 3);
}

}  // namespace tributary

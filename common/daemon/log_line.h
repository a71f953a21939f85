// LogLine: a line of a daemon's log, as text ("TIME LEVEL [DAEMON] TEXT") and as JSON. Pure; any thread.
//
// In JSON a line's subjects have fields of their own: job, view, round, peer. They are found by the words that every
// line has for them: job 'NAME', view N, round N; server N, node N, worker 'NAME' or rank N is the peer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tributary {

struct LogLine {
  std::string time;   // "2024-05-01T12:00:00.123+02:00"
  std::string level;  // "info", "warning", ...
  std::string daemon;
  std::string text;
};

// Returns the JSON, without a newline. Bytes that are no UTF-8 are replaced.
std::string to_json(const LogLine& line);

// Parses either form; nothing if it is neither: another program's line.
std::optional<LogLine> parse_log_line(std::string_view line);

// Milliseconds since 1970; nothing if it is no such time.
std::optional<std::int64_t> time_of(std::string_view time);

// The job that a text is about; "": none.
std::string job_in(std::string_view text);

}  // namespace tributary

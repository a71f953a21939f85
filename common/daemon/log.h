// Logging: a logger that is passed to its users, and a limiter for lines that the network can provoke.
#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/result.h"
#include "common/config/config.h"

namespace tributary {

// spdlog's logger. fmt's library formats its lines: spdlog's own functions would compile half of fmt in each source.
class Log final : public spdlog::logger {
 public:
  using Level = spdlog::level::level_enum;
  using spdlog::logger::logger;

  template <typename... Args>
  void log(Level level, fmt::format_string<Args...> format, Args&&... args) {
    if (should_log(level)) line(level, fmt::vformat(format, fmt::make_format_args(args...)));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    log(Level::info, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    log(Level::warn, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    log(Level::err, format, std::forward<Args>(args)...);
  }
  void info(std::string_view text) { line(Level::info, text); }
  void warn(std::string_view text) { line(Level::warn, text); }
  void error(std::string_view text) { line(Level::err, text); }
  void line(Level level, std::string_view text) { logger::log(level, spdlog::string_view_t(text.data(), text.size())); }
};

using Logger = std::shared_ptr<Log>;

// Writes nothing.
Logger quiet_logger();

// A logger of its own (spdlog's global registry is not used). Lines: "2024-05-01T12:00:00.123+02:00 info  [name] text",
// or JSON (common/daemon/log_line.h).
// Appends to config.file, or writes to standard error if that is empty; every line is flushed, so that a crash loses
// none. Any thread may log. Errors: kConfig for an unknown level, kIo if the file cannot be opened.
Result<Logger> make_logger(const LogConfig& config, const std::string& name);

// Writes at most `lines` lines per interval; the others are counted, and the next line written (or tick()) reports
// their number. For lines that a peer can cause at will: garbage messages must not fill the disk. Time is an argument
// (milliseconds, monotonic), so tests need no clock. Thread rule: one thread.
class RateLimitedLog {
 public:
  static constexpr std::uint32_t kLines = 10;
  static constexpr std::uint64_t kIntervalMs = 10'000;
  explicit RateLimitedLog(Logger logger, std::uint32_t lines = kLines, std::uint64_t interval_ms = kIntervalMs);

  void log(spdlog::level::level_enum level, std::string_view line, std::uint64_t now_ms);
  void warn(std::string_view line, std::uint64_t now_ms) { log(spdlog::level::warn, line, now_ms); }
  // Reports suppressed lines of an interval that is over, so that the count appears even when the noise has stopped.
  void tick(std::uint64_t now_ms);

  std::uint64_t suppressed_total() const { return suppressed_total_; }

 private:
  void roll(std::uint64_t now_ms);

  Logger logger_;
  const std::uint32_t lines_;
  const std::uint64_t interval_ms_;
  std::uint64_t interval_start_ms_ = 0;
  bool started_ = false;
  std::uint32_t written_ = 0;     // in this interval
  std::uint64_t suppressed_ = 0;  // since the last report
  std::uint64_t suppressed_total_ = 0;
};

}  // namespace tributary

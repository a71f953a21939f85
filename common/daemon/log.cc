#include "common/daemon/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "common/daemon/log_line.h"

namespace tributary {
namespace {

std::optional<spdlog::level::level_enum> parse_level(std::string_view name) {
  if (name == "trace") return spdlog::level::trace;
  if (name == "debug") return spdlog::level::debug;
  if (name == "info") return spdlog::level::info;
  if (name == "warn") return spdlog::level::warn;
  if (name == "error") return spdlog::level::err;
  return std::nullopt;
}

// The text of a line, without the characters by which a peer's words could look like lines of ours.
class OneLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    for (const char c : message.payload) out.push_back(static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<OneLine>(); }
};

constexpr const char* kTime = "%Y-%m-%dT%H:%M:%S.%e%z";

// The line as a JSON object; nlohmann::json escapes a peer's words.
class JsonLine final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    const std::string line = to_json({.time = {time.data(), time.size()},
                                      .level = {level.data(), level.size()},
                                      .daemon = {message.logger_name.data(), message.logger_name.size()},
                                      .text = {message.payload.data(), message.payload.size()}});
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonLine>(); }

 private:
  spdlog::pattern_formatter time_{kTime, spdlog::pattern_time_type::local, ""};
};

}  // namespace

Result<Logger> make_logger(const LogConfig& config, const std::string& name) {
  const auto level = parse_level(config.level);
  if (!level) {
    return fail(ErrorCode::kConfig,
                "log.level = \"" + config.level + "\": must be one of trace, debug, info, warn or error");
  }
  spdlog::sink_ptr sink;
  try {
    if (config.file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(config.file);
    }
  } catch (const spdlog::spdlog_ex& e) {
    return fail(ErrorCode::kIo, "log.file = \"" + config.file + "\": cannot be opened (" + e.what() +
                                    "); make its folder writable or choose another file");
  }
  auto logger = std::make_shared<Log>(name, std::move(sink));
  logger->set_level(*level);
  auto lines = std::make_unique<spdlog::pattern_formatter>();
  if (config.format == LogFormat::kJson) {
    lines->add_flag<JsonLine>('*').set_pattern("%*");
  } else {
    lines->add_flag<OneLine>('*').set_pattern(std::string(kTime) + " %-7l [%n] %*");
  }
  logger->set_formatter(std::move(lines));
  logger->flush_on(spdlog::level::trace);
  return logger;
}

Logger quiet_logger() {
  return std::make_shared<Log>("quiet");
}

RateLimitedLog::RateLimitedLog(Logger logger, std::uint32_t lines, std::uint64_t interval_ms)
    : logger_(std::move(logger)), lines_(std::max(lines, 1u)), interval_ms_(std::max<std::uint64_t>(interval_ms, 1)) {}

void RateLimitedLog::roll(std::uint64_t now_ms) {
  if (started_ && now_ms - interval_start_ms_ < interval_ms_) return;
  started_ = true;
  interval_start_ms_ = now_ms;
  written_ = 0;
  if (suppressed_ > 0) {
    logger_->warn("{} similar lines were suppressed (at most {} in {} ms are written)", suppressed_, lines_,
                  interval_ms_);
    suppressed_ = 0;
  }
}

void RateLimitedLog::log(spdlog::level::level_enum level, std::string_view line, std::uint64_t now_ms) {
  roll(now_ms);
  if (written_ < lines_) {
    ++written_;
    logger_->line(level, line);
  } else {
    ++suppressed_;
    ++suppressed_total_;
  }
}

void RateLimitedLog::tick(std::uint64_t now_ms) {
  roll(now_ms);
}

}  // namespace tributary

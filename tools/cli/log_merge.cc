#include "tools/cli/log_merge.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace tributary::cli {
namespace {

constexpr std::array<std::string_view, 6> kSeverities = {"trace", "debug", "info", "warning", "error", "critical"};

std::size_t severity(std::string_view level) {
  if (level == "warn") level = "warning";
  return static_cast<std::size_t>(std::ranges::find(kSeverities, level) - kSeverities.begin());
}

}  // namespace

bool lets_through(const LogFilter& filter, const std::optional<LogLine>& line) {
  if (!line) return true;
  if (severity(line->level) < severity(filter.level)) return false;
  const std::string job = job_in(line->text);
  return filter.job.empty() || job.empty() || job == filter.job;
}

Result<LogMerge> LogMerge::open(const std::vector<std::string>& paths) {
  LogMerge merge;
  for (const std::string& path : paths) {
    Source source;
    source.name = std::filesystem::path(path).stem().string();
    errno = 0;
    source.file.open(path, std::ios::binary);
    if (!source.file || source.file.peek() == std::ifstream::traits_type::eof()) {
      if (!source.file.is_open() || std::filesystem::is_directory(path))
        return fail(ErrorCode::kIo,
                    "cannot read the log " + path +
                        (errno != 0 ? ": " + std::generic_category().message(errno) : ": it is no file"));
      source.file.clear();  // empty so far
    }
    merge.sources_.push_back(std::move(source));
  }
  return merge;
}

void LogMerge::Source::next() {
  line.reset();
  char c = 0;
  while (file.get(c)) {
    if (c == '\n') {
      line = std::exchange(unfinished, {});
      parsed = parse_log_line(*line);
      if (parsed) time = *time_of(parsed->time);
      return;
    }
    if (unfinished.size() < kMaxLine) unfinished.push_back(c);
  }
  file.clear();  // it may grow
}

void LogMerge::read(const Take& take) {
  for (Source& source : sources_) {
    if (!source.line) source.next();
  }
  while (true) {
    Source* first = nullptr;
    for (Source& source : sources_) {
      if (source.line && (!first || source.time < first->time)) first = &source;
    }
    if (!first) return;
    take(first->name, *first->line, first->parsed);
    first->next();
  }
}

}  // namespace tributary::cli

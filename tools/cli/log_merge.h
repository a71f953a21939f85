// LogMerge: the lines of several logs in the order of their times. A line without a time (a trainer's, or the rest of a
// long one) stays behind the one before it. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/daemon/log_line.h"

namespace tributary::cli {

struct LogFilter {
  std::string level = "info";  // and above; lines of other programs have none, and pass
  std::string job;             // lines about another job are left out; "": none is
};
bool lets_through(const LogFilter& filter, const std::optional<LogLine>& line);

class LogMerge {
 public:
  static constexpr std::size_t kMaxLine = 64u << 10;  // bytes of a line; the rest is left out

  // kIo: a file that cannot be read.
  static Result<LogMerge> open(const std::vector<std::string>& paths);

  // Gives every whole line that the files have now, in order: name (of its file), unchanged line, parsed line.
  using Take = std::function<void(const std::string&, const std::string&, const std::optional<LogLine>&)>;
  void read(const Take& take);

 private:
  struct Source {
    std::string name;
    std::ifstream file;
    std::string unfinished;  // a line that is still being written
    std::optional<std::string> line;
    std::optional<LogLine> parsed;
    std::int64_t time = INT64_MIN;  // of the line, or the last one before it that had one
    void next();
  };
  std::vector<Source> sources_;
};

}  // namespace tributary::cli

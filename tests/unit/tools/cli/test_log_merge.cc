#include <doctest/doctest.h>

#include <fstream>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"
#include "tools/cli/log_merge.h"

namespace tributary::cli::log_merge_test {
namespace {

std::string at(int second, const std::string& level, const std::string& text, const char* zone = "+00:00") {
  const std::string digits = std::to_string(100 + second).substr(1);
  return "2024-05-01T12:00:" + digits + ".000" + zone + " " + level + " [x] " + text + "\n";
}

std::vector<std::string> read(LogMerge& merge) {
  std::vector<std::string> lines;
  merge.read([&](const std::string& name, const std::string& line, const std::optional<LogLine>& parsed) {
    lines.push_back(name + ": " + (parsed ? parsed->text : line));
  });
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("lines of several logs come in the order of time, and those without one stay where they were") {
  const testing::TempDir dir;
  std::ofstream server(dir / "server-0.log"), worker(dir / "worker-0.log"), rank(dir / "rank-0.log");
  server << at(1, "info", "one") << at(4, "info", "four") << "the rest of four\n" << std::flush;
  worker << to_json({"2024-05-01T14:00:02.000+02:00", "info", "y", "two"}) << "\n"
         << at(5, "info", "five") << std::flush;
  rank << "epoch 1\n" << at(3, "info", "three") << "unfinished" << std::flush;
  auto merge = required(LogMerge::open({dir / "server-0.log", dir / "worker-0.log", dir / "rank-0.log"}));
  CHECK(read(merge) == Lines{"rank-0: epoch 1", "server-0: one", "worker-0: two", "rank-0: three", "server-0: four",
                             "server-0: the rest of four", "worker-0: five"});
  CHECK(read(merge).empty());
  rank << " no more\n" << std::flush;
  server << at(6, "info", "six") << std::flush;
  CHECK(read(merge) == Lines{"rank-0: unfinished no more", "server-0: six"});
}

TEST_CASE("a line without an end takes a bounded place, and a file that is not there is named") {
  const testing::TempDir dir;
  std::ofstream(dir / "long.log") << std::string(3 * LogMerge::kMaxLine, 'x') << "\n";
  std::ofstream(dir / "empty.log");
  auto merge = required(LogMerge::open({dir / "long.log", dir / "empty.log"}));
  const Lines lines = read(merge);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].size() == LogMerge::kMaxLine + 6);
  for (const std::string& path : {dir / "none.log", std::string(dir.path())}) {
    const auto none = failure_of(LogMerge::open({path}));
    CHECK(none.code == ErrorCode::kIo);
    CHECK(testing::contains(none.message, path));
  }
}

TEST_CASE("levels and jobs are filtered; other programs' lines are not") {
  const LogFilter warnings{.level = "warn", .job = ""}, of_job{.level = "info", .job = "a"};
  const auto line = [](const std::string& level, const std::string& text) {
    return std::optional(LogLine{"", level, "x", text});
  };
  CHECK(lets_through(warnings, line("warning", "x")));
  CHECK(lets_through(warnings, line("error", "x")));
  CHECK_FALSE(lets_through(warnings, line("info", "x")));
  CHECK(lets_through(warnings, std::nullopt));
  CHECK(lets_through(of_job, line("info", "job 'a' began")));
  CHECK(lets_through(of_job, line("info", "a peer was lost")));
  CHECK_FALSE(lets_through(of_job, line("info", "job 'b' began")));
}

}  // namespace tributary::cli::log_merge_test

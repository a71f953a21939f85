#include <doctest/doctest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "common/daemon/log.h"
#include "common/daemon/log_line.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"

namespace tributary::log_test {
namespace {

using testing::contains;
using testing::TempDir;

// A logger whose lines are the bare texts.
struct Captured {
  std::ostringstream out;
  Logger logger = std::make_shared<Log>("test", std::make_shared<spdlog::sinks::ostream_sink_st>(out));
  Captured() { logger->set_pattern("%v"); }
};

}  // namespace

TEST_CASE("a log file has a line with time, level and name for everything at or above its level") {
  const TempDir dir;
  const std::string path = dir / "log";
  {
    const auto logger = required(make_logger({"info", path}, "server-0"));
    logger->debug("not this");
    logger->warn("round {} is late", 7);
    std::ifstream file(path);  // flushed without being closed
    std::string line;
    REQUIRE(std::getline(file, line));
    const std::regex form(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d warning \[server-0\] round 7 is late)");
    CHECK_MESSAGE(std::regex_match(line, form), line);
    CHECK_FALSE(std::getline(file, line));
  }
  const auto again = required(make_logger({"trace", path}, "server-0"));
  again->trace("appended");
  std::ifstream file(path);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  CHECK(contains(all, "round 7 is late"));
  CHECK(contains(all, "appended"));
}

TEST_CASE("a line as JSON has its time, level, daemon and text, and what the text is about") {
  const TempDir dir;
  const std::string path = dir / "log";
  const auto logger = required(make_logger({"info", path, LogFormat::kJson}, "server-0"));
  logger->warn("job 'mnist' goes on in view 3 at round 17: node 1 was lost");
  logger->info("a peer said: \"}\n{\xff");
  std::ifstream file(path);
  std::string first, second, more;
  REQUIRE(std::getline(file, first));
  REQUIRE(std::getline(file, second));
  CHECK_FALSE(std::getline(file, more));
  const auto line = nlohmann::json::parse(first);
  CHECK(time_of(line.at("time").get<std::string>()));
  CHECK(line.at("level") == "warning");
  CHECK(line.at("daemon") == "server-0");
  CHECK(line.at("job") == "mnist");
  CHECK(line.at("view") == 3);
  CHECK(line.at("round") == 17);
  CHECK(line.at("peer") == "node 1");
  CHECK(line.at("text") == "job 'mnist' goes on in view 3 at round 17: node 1 was lost");
  const auto strange = nlohmann::json::parse(second);
  CHECK(strange.at("text").get<std::string>().starts_with("a peer said: \"}\n{"));
  CHECK_FALSE(strange.contains("job"));
  CHECK(parse_log_line(first)->text == line.at("text").get<std::string>());
}

TEST_CASE("a line of either form is read back, and other programs' lines are not taken for one") {
  const LogLine line{"2024-05-01T12:00:00.123+02:00", "warning", "server-0", "round 7 [x] is late"};
  const auto text = required(parse_log_line("2024-05-01T12:00:00.123+02:00 warning [server-0] round 7 [x] is late"));
  for (const LogLine& read : {text, parse_log_line(to_json(line)).value()}) {
    CHECK(read.time == line.time);
    CHECK(read.level == line.level);
    CHECK(read.daemon == line.daemon);
    CHECK(read.text == line.text);
  }
  for (const char* other : {"", "{", "{}", "[]", "{\"time\": 3}", "epoch 1: loss 0.5", "2024-05-01T12:00:00.123+02:00",
                            "2024-05-01T12:00:00.123+02:00 warning", "2024-05-01T12:00:00.123+02:00 a [b",
                            "2024-13-01T12:00:00.123+02:00 info [b] x", "2024-05-01 12:00:00.123+02:00 info [b] x"}) {
    CAPTURE(other);
    CHECK_FALSE(parse_log_line(other));
  }
  CHECK(time_of("1970-01-01T00:00:00.000+00:00") == 0);
  CHECK(time_of("1970-01-02T02:00:01.500+02:00") == 86'401'500);
  CHECK(time_of("1970-01-01T00:00:00.000-00:30") == 1'800'000);
  CHECK_FALSE(time_of("1970-02-30T00:00:00.000+00:00"));
}

TEST_CASE("two loggers of the same name are possible: nothing is registered globally") {
  CHECK(make_logger({"info", ""}, "same"));
  CHECK(make_logger({"info", ""}, "same"));
}

TEST_CASE("an unknown level and a file that cannot be opened are refused by name") {
  const auto level = failure_of(make_logger({"loud", ""}, "x"));
  CHECK(level.code == ErrorCode::kConfig);
  CHECK(contains(level.message, "log.level = \"loud\""));
  const auto file = failure_of(make_logger({"info", "/proc/nonexistent/tributary.log"}, "x"));
  CHECK(file.code == ErrorCode::kIo);
  CHECK(contains(file.message, "/proc/nonexistent/tributary.log"));
}

TEST_CASE("noise is cut to its lines per interval, and the next line says how much was suppressed") {
  Captured captured;
  RateLimitedLog noise(captured.logger, 2, 1000);
  for (std::uint64_t i = 0; i < 10; ++i) noise.warn("bad message " + std::to_string(i), 5000 + i);
  CHECK(captured.out.str() == "bad message 0\nbad message 1\n");
  CHECK(noise.suppressed_total() == 8);
  captured.out.str("");
  noise.warn("later", 6000);
  CHECK(captured.out.str() == "8 similar lines were suppressed (at most 2 in 1000 ms are written)\nlater\n");
  captured.out.str("");
  noise.warn("second", 6001);
  CHECK(captured.out.str() == "second\n");
  CHECK(noise.suppressed_total() == 8);
}

TEST_CASE("the count of suppressed lines is reported when the noise has stopped") {
  Captured captured;
  RateLimitedLog noise(captured.logger, 1, 1000);
  for (int i = 0; i < 4; ++i) noise.warn("x", 0);
  captured.out.str("");
  noise.tick(999);
  CHECK(captured.out.str().empty());
  noise.tick(1000);
  CHECK(contains(captured.out.str(), "3 similar lines were suppressed"));
  captured.out.str("");
  noise.tick(5000);
  CHECK(captured.out.str().empty());
}

TEST_CASE("text from the network is not taken as a format") {
  Captured captured;
  RateLimitedLog noise(captured.logger, 5, 1000);
  noise.warn("{} {0:x} %s", 1);
  CHECK(captured.out.str() == "{} {0:x} %s\n");
}

}  // namespace tributary::log_test

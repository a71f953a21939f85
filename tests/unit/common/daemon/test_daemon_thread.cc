// Exceptions on a daemon's threads.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <regex>
#include <stdexcept>

#include "common/base/exit_codes.h"
#include "common/daemon/daemon_thread.h"
#include "common/daemon/log.h"
#include "tests/unit/expect.h"
#include "tests/unit/temp_dir.h"

namespace tributary::testing::daemon_thread_test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("what a thread throws ends the process with a message and an exit code, not by a signal") {
  const TempDir dir;
  LogConfig config;
  config.file = dir / "log";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const Logger logger = make_logger(config, "server-0").value();
    start_thread("lane 3", logger, [] { throw std::runtime_error("a cause"); }).join();
    std::_Exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kExitFailed);
  CHECK(contains(text_of(config.file), "the thread 'lane 3' failed: a cause"));
}

TEST_CASE("what contained work throws is its error") {
  CHECK(contained([]() -> Status { return {}; }));
  CHECK(contained([]() -> Status { return fail(ErrorCode::kStore, "x"); }).error().code == ErrorCode::kStore);
  CHECK(contained([]() -> Status { throw std::bad_alloc(); }).error().code == ErrorCode::kLimit);
  CHECK(contained([]() -> Status { throw std::runtime_error("a cause"); }).error().message == "a cause");
}

TEST_CASE("no thread of the product starts elsewhere") {
  // A thread's constructor with arguments, also as a member's initializer.
  const std::regex starts(R"(std::j?thread\s*[({]\s*[^)}\s]|std::j?thread\s+\w+\s*[({]|thread_?\(\[|std::async)");
  std::size_t read = 0;
  for (const char* folder : {"common", "session", "server", "worker", "train", "tools/cluster", "tools/cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRIBUTARY_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h") continue;
      ++read;
      if (entry.path().stem() == "daemon_thread") continue;
      const std::string text = text_of(entry.path());
      std::smatch found;
      CHECK_MESSAGE(!std::regex_search(text, found, starts), entry.path().string(), ": ", found.str());
    }
  }
  CHECK(read > 200);
}

}  // namespace
}  // namespace tributary::testing::daemon_thread_test

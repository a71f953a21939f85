// The end of a daemon that gives up.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "common/daemon/daemon_main.h"
#include "tests/unit/expect.h"
#include "tests/unit/temp_dir.h"

namespace tributary::testing::daemon_main_test {
namespace {

TEST_CASE("a daemon that gives up ends within its time-out, even if a device holds its destructors up") {
  const TempDir dir;
  const std::string said = dir / "said";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int file = ::open(said.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    const int code = run_daemon("daemon", [&]() -> Result<Daemon> {
      auto logger = make_logger({.file = said}, "daemon");
      if (!logger) return tl::unexpected(logger.error());
      Daemon daemon;
      daemon.logger = std::move(*logger);
      daemon.stop_timeout_s = 1;
      daemon.ready_line = [] { return std::string("ready"); };
      daemon.broken = [] { return std::string("the device is lost"); };
      const std::shared_ptr<int> device(new int, [](const int*) {
        for (;;) ::pause();
      });
      daemon.drain = [device] {};
      return daemon;
    });
    std::_Exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kExitFailed);
  std::ifstream in(said);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(contains(text, "daemon: the device is lost"));
  CHECK(contains(text, "without giving its devices and memory back: that has taken 1 s"));
}

}  // namespace
}  // namespace tributary::testing::daemon_main_test

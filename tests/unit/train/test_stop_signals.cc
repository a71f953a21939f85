// Stop signals of a process. Each case runs in a child of its own, because a signal ends the process.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/daemon/daemon_main.h"
#include "common/daemon/log.h"
#include "train/stop_signal.h"

namespace tributary::stop_signals_test {
namespace {

using std::chrono::milliseconds;

const milliseconds kLater{kSameStopSignalMs + 100};

// The wait status of a child that ran `body` and exited with what it returned. `meanwhile` begins when the child has
// written to the descriptor that `body` gets.
int in_child(const std::function<int(int ready)>& body, const std::function<void(pid_t, int ready)>& meanwhile = {}) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body(ready[1]));
  ::close(ready[1]);
  char byte = 0;
  if (meanwhile) {
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    meanwhile(child, ready[0]);
  }
  ::close(ready[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

// A daemon that needs `drain_time` to stop and sends itself `again` as soon as it begins to. It writes to `ready` when
// it is, and once more when it has taken the first signal.
int serve(int ready, milliseconds drain_time, int again) {
  std::uint64_t drained_at = 0;
  return run_daemon("test", [&]() -> Result<Daemon> {
    return Daemon{.logger = quiet_logger(),
                  .stop_timeout_s = 30,
                  .jobs = "jobs",
                  .ready_line =
                      [ready] {
                        TRIB_ASSERT(::write(ready, "r", 1) == 1);
                        return std::string("ready");
                      },
                  .drain =
                      [&drained_at, ready, drain_time, again] {
                        TRIB_ASSERT(::write(ready, "d", 1) == 1);
                        drained_at = steady_ms() + static_cast<std::uint64_t>(drain_time.count());
                        if (again != 0) ::kill(::getpid(), again);
                      },
                  .drained = [&drained_at] { return steady_ms() >= drained_at; },
                  .abandon = {}};
  });
}

TEST_CASE("a daemon takes signals that come together as one request to stop cleanly") {
  const int status = in_child([](int ready) { return serve(ready, milliseconds(200), SIGTERM); },
                              [](pid_t child, int ready) {
                                ::kill(child, SIGTERM);
                                char byte = 0;  // its end of the pipe stays open until then
                                CHECK(::read(ready, &byte, 1) == 1);
                              });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a daemon stops at once when a second signal comes later") {
  const int status = in_child([](int ready) { return serve(ready, milliseconds(20'000), 0); },
                              [](pid_t child, int ready) {
                                ::kill(child, SIGTERM);
                                char byte = 0;  // later than it was taken, not than it was sent
                                CHECK(::read(ready, &byte, 1) == 1);
                                std::this_thread::sleep_for(kLater);
                                ::kill(child, SIGINT);
                              });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kExitSignal + SIGINT);
}

TEST_CASE("a daemon that cannot go on says why, gives up what it does and ends for its supervisor") {
  const int status = in_child([](int) {
    bool told = false;
    std::uint64_t broken_at = 0;
    const int code = run_daemon("test", [&]() -> Result<Daemon> {
      Daemon daemon;
      daemon.logger = quiet_logger();
      daemon.ready_line = [&] {
        broken_at = steady_ms() + 100;
        return std::string("ready");
      };
      daemon.broken = [&] { return steady_ms() < broken_at ? std::string() : std::string("the device is lost"); };
      daemon.drain = [] { ::_exit(7); };
      daemon.abandon = [&](const std::string& why) { told = why == "the device is lost"; };
      return daemon;
    });
    return told ? code : 8;
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == kExitFailed);
}

TEST_CASE("a trainer takes signals that come together as one request") {
  const int status = in_child([](int) {
    train::StopSignal stop;
    stop.arm();
    if (stop.requested()) return 1;
    std::raise(SIGTERM);
    std::raise(SIGTERM);
    std::raise(SIGINT);
    return stop.requested() ? 0 : 2;
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a trainer's first signal has one answer, and ends its pauses") {
  const int status = in_child(
      [](int ready) {
        train::StopSignal stop;
        stop.arm();
        if (stop.unanswered()) return 1;
        TRIB_ASSERT(::write(ready, "r", 1) == 1);
        stop.sleep(milliseconds(600'000));
        if (!stop.unanswered() || stop.unanswered() || !stop.requested()) return 2;
        stop.sleep(milliseconds(600'000));
        return 0;
      },
      [](pid_t child, int) {
        std::this_thread::sleep_for(milliseconds(50));
        ::kill(child, SIGINT);
      });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a trainer ends at once when a second signal comes later") {
  const int status = in_child([](int) {
    train::StopSignal stop;
    stop.arm();
    std::raise(SIGINT);
    std::this_thread::sleep_for(kLater);
    std::raise(SIGTERM);
    return 0;
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
}

}  // namespace
}  // namespace tributary::stop_signals_test

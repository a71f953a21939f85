#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tools/cluster/line_follower.h"
#include "tools/cluster/process.h"
#include "tools/cluster/stop_wait.h"

namespace tributary::process_test {
namespace {

using std::chrono::milliseconds;

struct TempDir {
  TempDir() {
    char name[] = "/tmp/tributary-process-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string contents(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

Process shell(const std::string& script, const std::string& log = "/dev/null") {
  return required(Process::spawn({.argv = {"/bin/sh", "-c", script}, .log_file = log}));
}

bool alive(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

TEST_CASE("a child's output goes to its log file and its exit status comes back") {
  TempDir dir;
  const std::string log = dir.path + "/log";
  Process child = shell("echo out; echo err >&2; exit 3", log);
  const auto status = required(child.wait(milliseconds(10'000)));
  CHECK(status.code == 3);
  CHECK(status.signal == 0);
  CHECK(status.describe() == "exited with status 3");
  CHECK(contents(log) == "out\nerr\n");
  shell("echo more", log).wait(milliseconds(10'000));
  CHECK(contents(log) == "out\nerr\nmore\n");
}

TEST_CASE("standard output may go to a file of its own, and is followed line by line") {
  TempDir dir;
  const std::string log = dir.path + "/log", output = dir.path + "/out";
  std::ofstream(output) << "of an earlier run\n";
  LineFollower follower(output);
  const auto lines = [&](bool rest = false) {
    std::vector<std::string> all;
    follower.read([&](std::string_view line) { all.emplace_back(line); }, rest);
    return all;
  };
  CHECK(lines().empty());
  auto child = required(Process::spawn({.argv = {"/bin/sh", "-c", "echo one; echo err >&2; echo; printf part"},
                                        .log_file = log,
                                        .output_file = output}));
  REQUIRE(child.wait(milliseconds(10'000)));
  CHECK(contents(log) == "err\n");
  CHECK(lines() == std::vector<std::string>{"one", ""});
  std::ofstream(output, std::ios::app) << "ial\nend";
  CHECK(lines() == std::vector<std::string>{"partial"});
  CHECK(lines(true) == std::vector<std::string>{"end"});
  CHECK(lines(true).empty());
}

TEST_CASE("a signal reaches what a child started, too, and what it left behind can be ended") {
  TempDir dir;
  const std::string log = dir.path + "/log";
  Process child = shell("sleep 1000 & echo $!; wait", log);
  Process leaves = shell("sleep 1000 & echo $!", log);
  REQUIRE(leaves.wait(milliseconds(10'000)));
  std::vector<pid_t> sleepers;
  for (int i = 0; i < 2000 && sleepers.size() < 2; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    sleepers.clear();
    std::istringstream in(contents(log));
    for (pid_t pid = 0; in >> pid;) sleepers.push_back(pid);
  }
  REQUIRE(sleepers.size() == 2);
  child.send_signal(SIGTERM);
  leaves.end_rest();
  REQUIRE(child.wait(milliseconds(10'000)));
  // Gone, or waiting to be reaped by whoever inherited them.
  for (const pid_t pid : sleepers) {
    bool ended = false;
    for (int i = 0; i < 2000 && !ended; ++i) {
      std::this_thread::sleep_for(milliseconds(5));
      const std::string stat = contents("/proc/" + std::to_string(pid) + "/stat");
      ended = stat.empty() || testing::contains(stat, ") Z");
    }
    CHECK(ended);
  }
}

TEST_CASE("a child gets the caller's environment with additions and replacements") {
  TempDir dir;
  auto child = required(Process::spawn({.argv = {"/bin/sh", "-c", "echo $RANK:$HOME:$PATH"},
                                        .log_file = dir.path + "/log",
                                        .environment = {{"RANK", "3"}, {"HOME", "/nowhere"}}}));
  REQUIRE(child.wait(milliseconds(10'000)));
  CHECK(contents(dir.path + "/log") == "3:/nowhere:" + std::string(::getenv("PATH")) + "\n");
}

TEST_CASE("a program that does not exist is an error that names it") {
  const auto child = failure_of(Process::spawn({.argv = {"/nowhere/tributary-server"}}));
  CHECK(child.code == ErrorCode::kIo);
  CHECK(testing::contains(child.message, "/nowhere/tributary-server"));
  CHECK(testing::contains(child.message, "No such file"));
}

TEST_CASE("a log file that cannot be opened is an error that names it") {
  const auto child = failure_of(Process::spawn({.argv = {"/bin/true"}, .log_file = "/nowhere/log"}));
  CHECK(testing::contains(child.message, "/nowhere/log"));
}

TEST_CASE("waiting for a child that lives gives up after the time-out") {
  Process child = shell("exec sleep 60");
  const auto before = std::chrono::steady_clock::now();
  CHECK_FALSE(child.wait(milliseconds(50)));
  CHECK(std::chrono::steady_clock::now() - before >= milliseconds(50));
  CHECK(child.running());
}

TEST_CASE("terminate ends a child that listens with SIGTERM") {
  Process child = shell("exec sleep 60");
  const ExitStatus status = child.terminate(milliseconds(10'000));
  CHECK(status.signal == SIGTERM);
  CHECK_FALSE(child.running());
}

TEST_CASE("terminate kills a child that ignores SIGTERM") {
  TempDir dir;
  const std::string log = dir.path + "/log";
  Process child = shell("trap '' TERM; echo deaf; while :; do sleep 0.05; done", log);
  for (int i = 0; i < 1000 && contents(log).empty(); ++i) ::usleep(10'000);
  REQUIRE(contents(log) == "deaf\n");
  const ExitStatus status = child.terminate(milliseconds(100));
  CHECK(status.signal == SIGKILL);
  CHECK(status.describe() == "was killed by signal 9 (Killed)");
}

TEST_CASE("the destructor ends the child") {
  pid_t pid = -1;
  {
    Process child = shell("exec sleep 60");
    pid = child.pid();
    CHECK(alive(pid));
  }
  CHECK_FALSE(alive(pid));
}

TEST_CASE("a child ends when the process that started it is killed") {
  // A middle process starts a child, tells its pid through a pipe, and kills itself: no destructor runs.
  int fds[2];
  REQUIRE(::pipe(fds) == 0);
  // Orphans come to this process, so that the test can reap, and thus observe, the grandchild. Before the fork: the
  // middle process may be gone before this one runs again.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t middle = ::fork();
  if (middle == 0) {
    auto child = Process::spawn({.argv = {"/bin/sleep", "60"}});
    const pid_t pid = child ? child->pid() : -1;
    [[maybe_unused]] const auto written = ::write(fds[1], &pid, sizeof pid);
    ::raise(SIGKILL);
  }
  pid_t pid = -1;
  REQUIRE(::read(fds[0], &pid, sizeof pid) == sizeof pid);
  ::close(fds[0]);
  ::close(fds[1]);
  ::waitpid(middle, nullptr, 0);
  REQUIRE(pid > 0);
  int raw = 0;
  pid_t got = 0;
  for (int i = 0; i < 1000 && got == 0; ++i) {
    got = ::waitpid(pid, &raw, WNOHANG);
    ::usleep(10'000);
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  REQUIRE(got == pid);
  CHECK(WIFSIGNALED(raw));
  CHECK(WTERMSIG(raw) == SIGTERM);
}

TEST_CASE("a child keeps no descriptor of the caller's but the one it is given") {
  TempDir dir;
  // High numbers, so that they are not mistaken for descriptors that the shell opens itself.
  const int kept = ::fcntl(STDERR_FILENO, F_DUPFD, 100);
  const int other = ::fcntl(STDERR_FILENO, F_DUPFD, 100);
  REQUIRE(kept >= 100);
  REQUIRE(other >= 100);
  auto child = required(Process::spawn({.argv = {"/bin/sh", "-c", "for f in /proc/$$/fd/*; do echo ${f##*/}; done"},
                                        .log_file = dir.path + "/log",
                                        .inherit_fd = kept}));
  REQUIRE(child.wait(milliseconds(10'000)));
  const std::string fds = "\n" + contents(dir.path + "/log");
  CHECK(testing::contains(fds, "\n" + std::to_string(kept) + "\n"));
  CHECK_FALSE(testing::contains(fds, "\n" + std::to_string(other) + "\n"));
  ::close(kept);
  ::close(other);
}

TEST_CASE("usage counts the processor time and memory of a live child and the total of a dead one") {
  Process child = shell("while :; do :; done");
  ::usleep(300'000);
  const ProcessUsage live = child.usage();
  CHECK(live.cpu_seconds > 0.0);
  CHECK(live.resident_peak_bytes > 100'000);
  child.terminate(milliseconds(10'000));
  CHECK(child.usage().cpu_seconds >= live.cpu_seconds);
  CHECK(usage_of(child.pid()).cpu_seconds == 0.0);
}

TEST_CASE("the last lines of a file are those asked for, from the offset asked for") {
  TempDir dir;
  const std::string file = dir.path + "/log";
  CHECK(last_lines(file, 3) == "  (nothing)");
  std::ofstream(file) << "one\ntwo\nthree\n";
  CHECK(last_lines(file, 2) == "  two\n  three");
  CHECK(last_lines(file, 9) == "  one\n  two\n  three");
  CHECK(last_lines(file, 9, 8) == "  three");
  CHECK(last_lines(file, 9, 14) == "  (nothing)");
}

TEST_CASE("a daemon that stops is waited for while it answers, however long it takes") {
  Process process = shell("sleep 4");
  int asked = 0;
  StopWait wait(milliseconds(1500));
  CHECK(wait.ended(process, [&](milliseconds) { return ++asked > 0; }));
  CHECK(asked >= 2);
}

TEST_CASE("a daemon whose pages are closed already, and that has not quite ended, is waited for") {
  Process process = shell("sleep 2");
  StopWait wait(milliseconds(20'000));
  CHECK(wait.ended(process, [](milliseconds) { return false; }));
}

TEST_CASE("a daemon that answers nobody any more is not waited for beyond the limit") {
  Process first = shell("sleep 60");
  Process second = shell("sleep 60");
  StopWait wait(milliseconds(1500));
  CHECK_FALSE(wait.ended(first, [](milliseconds) { return false; }));
  int asked = 0;
  CHECK_FALSE(wait.ended(second, [&](milliseconds) { return ++asked < 0; }));
  CHECK(asked == 1);  // the limit was for both
}

TEST_CASE("a signal to the group of who starts a process does not end the process that is being started") {
  // As at a terminal: Ctrl-C goes to the whole group, and the command that has the signal blocked deals with it.
  [[maybe_unused]] const int led_already = ::setpgid(0, 0);
  sigset_t interrupt, before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &interrupt, &before) == 0);
  std::atomic<bool> over{false};
  std::thread user([&] {
    while (!over) ::kill(0, SIGINT);
  });
  int interrupted = 0;
  for (int i = 0; i < 100; ++i) {
    Process process = shell("exit 7");
    const auto status = process.wait(milliseconds(10'000));
    if (!status || status->code != 7) ++interrupted;
  }
  over = true;
  user.join();
  ::signal(SIGINT, SIG_IGN);  // what is pending is dropped
  ::signal(SIGINT, SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  CHECK(interrupted == 0);
}

}  // namespace
}  // namespace tributary::process_test

// Stacks of all threads that a process prints when it crashes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "common/daemon/crash_stacks.h"
#include "tests/unit/expect.h"
#include "tests/unit/temp_dir.h"

namespace tributary::testing::crash_stacks_test {
namespace {

#if !defined(TRIBUTARY_SANITIZED)
TEST_CASE("a process that crashes says where each of its threads was, and ends by the signal") {
  int signal = SIGSEGV;
  SUBCASE("it reads where there is nothing") {}
  SUBCASE("it is aborted from outside") {
    signal = SIGABRT;
  }
  const TempDir dir;
  const std::string said = dir / "said";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit none{};
    ::setrlimit(RLIMIT_CORE, &none);
    const int file = ::open(said.c_str(), O_CREAT | O_WRONLY, 0600);
    ::dup2(file, STDERR_FILENO);
    say_stacks_on_crash();
    std::atomic<bool> there = false;
    std::thread other([&] {
      ::pthread_setname_np(::pthread_self(), "lane-3");
      there = true;
      for (;;) ::pause();
    });
    while (!there) std::this_thread::yield();
    if (signal == SIGSEGV) {
      volatile int* nowhere = reinterpret_cast<volatile int*>(std::uintptr_t{8});
      *nowhere = 1;
    }
    ::kill(::getpid(), signal);
    for (;;) ::pause();
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == signal);
  std::ifstream in(said);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  INFO(text);
  CHECK(text.starts_with("crash: signal " + std::to_string(signal) + "\n"));
  CHECK(contains(text, ", which the signal hit:\n"));
  CHECK(contains(text, "(lane-3)"));
  CHECK(contains(text, "(+0x"));  // a place in this program, for addr2line
}
#endif

}  // namespace
}  // namespace tributary::testing::crash_stacks_test

#include "common/daemon/crash_stacks.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <initializer_list>

namespace tributary {
namespace {

#if defined(TRIBUTARY_SANITIZED)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kStackFrames = 64;
constexpr int kThreadSignal = SIGUSR2;
constexpr int kThreadPatienceMs = 100;  // for each other thread; one may hold all signals back, as ZeroMQ's do

std::atomic<bool> crashing = false;
std::atomic<int> awaited = 0;  // thread whose turn it is to print; 0: none

// Only what a signal handler may call, from here to the handlers.

int this_thread() {
  return static_cast<int>(::syscall(SYS_gettid));
}

void put(const char* text) {
  std::size_t length = std::strlen(text);
  while (length > 0) {
    const ssize_t written = ::write(STDERR_FILENO, text, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text += written;
    length -= static_cast<std::size_t>(written);
  }
}

void put_number(int value) {
  char digits[16];
  char* at = digits + sizeof digits;
  *--at = '\0';
  do {
    *--at = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value > 0);
  put(at);
}

void put_stack(const char* what) {
  char name[16] = {};  // by which the daemon calls the thread
  ::prctl(PR_GET_NAME, name);
  put("thread ");
  put_number(this_thread());
  put(" (");
  put(name);
  put(")");
  put(what);
  put(":\n");
  void* frames[kStackFrames];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kStackFrames), STDERR_FILENO);
}

void print_own(int) {
  const int kept = errno;
  if (awaited == this_thread()) {
    put_stack("");
    awaited = 0;
  }
  errno = kept;
}

void ask_others(int self) {
  const int folder = ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(dirent64) char entries[4096];
  for (;;) {
    const ssize_t read = ::getdents64(folder, entries, sizeof entries);
    if (read <= 0) break;
    for (ssize_t at = 0; at < read;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      int thread = 0;
      for (const char* digit = entry->d_name; *digit >= '0' && *digit <= '9'; ++digit) {
        thread = thread * 10 + (*digit - '0');
      }
      at += entry->d_reclen;
      if (thread == 0 || thread == self) continue;
      awaited = thread;
      if (::syscall(SYS_tgkill, ::getpid(), thread, kThreadSignal) != 0) continue;
      for (int waited = 0; awaited == thread && waited < kThreadPatienceMs; ++waited) {
        const timespec millisecond{.tv_sec = 0, .tv_nsec = 1'000'000};
        ::nanosleep(&millisecond, nullptr);
      }
    }
  }
  ::close(folder);
  awaited = 0;
}

void crash(int signal) {
  const int self = this_thread();
  if (!crashing.exchange(true)) {
    put("crash: signal ");
    put_number(signal);
    put("\n");
    put_stack(", which the signal hit");
    ask_others(self);
  }
  // SA_RESETHAND has put the usual end back.
  ::syscall(SYS_tgkill, ::getpid(), self, signal);
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void say_stacks_on_crash() {
  if constexpr (kSanitized) return;
  // The first call loads the unwinder, which a handler must not.
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  handle(kThreadSignal, print_own, SA_RESTART);
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    handle(signal, crash, static_cast<int>(SA_RESETHAND | SA_NODEFER));
  }
}

}  // namespace tributary

// Functions that glibc 2.31 lacks and newer releases have, for programs that are compiled with Debian 12's headers and
// linked against Debian 11's glibc (cmake/TributaryPortable.cmake). Hidden: nothing outside sees them.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OWN __attribute__((visibility("hidden")))

// 2.32: libstdc++ counts references without atomic instructions while it is true. Always false is always right.
OWN char __libc_single_threaded = 0;

// 2.36: libstdc++'s std::random_device. The kernel gives so few bytes whole.
OWN uint32_t arc4random(void);
OWN uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value)
    if (errno != EINTR) abort();
  return value;
}

static void close_on_exec(unsigned descriptor, unsigned first, unsigned last) {
  if (descriptor < first || descriptor > last) return;
  const int flags = fcntl((int)descriptor, F_GETFD);
  if (flags >= 0) fcntl((int)descriptor, F_SETFD, flags | FD_CLOEXEC);
}

// Each open descriptor, or without /proc each that may be open. As all here, for use between fork and exec.
static void close_all_on_exec(unsigned first, unsigned last) {
  const int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    struct rlimit limit;
    const unsigned end =
        getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536 ? (unsigned)limit.rlim_cur : 65536;
    for (unsigned descriptor = first; descriptor < end && descriptor <= last; ++descriptor)
      close_on_exec(descriptor, first, last);
    return;
  }
  struct entry {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
  };
  _Alignas(struct entry) char buffer[4096];
  long bytes;
  while ((bytes = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0) {
    for (long at = 0; at < bytes; at += ((struct entry*)(buffer + at))->length) {
      const char* name = ((struct entry*)(buffer + at))->name;
      unsigned descriptor = 0;
      if (*name < '0' || *name > '9') continue;
      for (; *name >= '0' && *name <= '9'; ++name) descriptor = descriptor * 10 + (unsigned)(*name - '0');
      close_on_exec(descriptor, first, last);
    }
  }
  close(folder);
}

// 2.34. Linux has the call since 5.9 and CLOSE_RANGE_CLOEXEC since 5.11, but Debian 11 runs 5.10 and Ubuntu 20.04 5.4.
OWN int close_range(unsigned first, unsigned last, int flags);
OWN int close_range(unsigned first, unsigned last, int flags) {
  const int result = (int)syscall(SYS_close_range, first, last, (unsigned)flags);
  if (result == 0 || flags != CLOSE_RANGE_CLOEXEC || (errno != ENOSYS && errno != EINVAL)) return result;
  if (first > last) return result;
  close_all_on_exec(first, last);
  return 0;
}

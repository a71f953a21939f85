#include "session/shared/not_inherited.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <vector>

namespace tributary {
namespace {

// All that a process has of them; locked while it forks, so that the child finds it whole.
struct Descriptors {
  std::mutex mutex;
  std::vector<int> fds;
};

// Never destroyed: a process may fork at its very end.
Descriptors& descriptors() {
  static auto* const all = new Descriptors;
  return *all;
}

// In a child, where only calls are allowed that signal handlers may make. The number is free for a moment, so that the
// last descriptor that the process may have is enough.
void replace(int fd) {
  ::close(fd);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0 || null == fd) return;
  ::dup3(null, fd, O_CLOEXEC);
  ::close(null);
}

void before_fork() {
  descriptors().mutex.lock();
}
void after_in_parent() {
  descriptors().mutex.unlock();
}
void after_in_child() {
  for (const int fd : descriptors().fds) replace(fd);
  descriptors().fds.clear();  // numbers that are something else's from now on
  descriptors().mutex.unlock();
}

}  // namespace

NotInherited::NotInherited(int fd) : fd_(fd) {
  [[maybe_unused]] static const int registered = ::pthread_atfork(before_fork, after_in_parent, after_in_child);
  const std::lock_guard lock(descriptors().mutex);
  descriptors().fds.push_back(fd);
}

NotInherited::~NotInherited() {
  if (fd_ < 0) return;
  const std::lock_guard lock(descriptors().mutex);
  std::erase(descriptors().fds, fd_);
}

}  // namespace tributary

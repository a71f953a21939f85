#include "common/system/event_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace tributary {

Result<EventFd> EventFd::create() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return fail(ErrorCode::kIo, std::string("cannot create an eventfd: ") + std::strerror(errno) +
                                    "; raise the limit on open files (ulimit -n)");
  }
  return EventFd(fd);
}

EventFd::~EventFd() {
  if (fd_ >= 0) ::close(fd_);
}

void EventFd::notify() const {
  const std::uint64_t one = 1;
  // A full counter (EAGAIN) means that a wake-up is pending anyway.
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
}

void EventFd::drain() const {
  std::uint64_t count;
  [[maybe_unused]] const auto got = ::read(fd_, &count, sizeof count);
}

}  // namespace tributary

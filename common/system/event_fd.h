// EventFd: wakes a polling thread from another thread or process.
#pragma once

#include <utility>

#include "common/base/result.h"

namespace tributary {

class EventFd {
 public:
  static Result<EventFd> create();
  static EventFd adopt(int fd) { return EventFd(fd); }
  EventFd() = default;
  EventFd(EventFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  EventFd& operator=(EventFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~EventFd();

  int fd() const { return fd_; }
  void notify() const;  // any thread; never blocks
  void drain() const;   // the polling thread, before it looks for its work

 private:
  explicit EventFd(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace tributary

// NotInherited: a descriptor that the children of this process do not keep when it forks. SOCK_CLOEXEC is for exec; a
// child that only forks (a process that loads data) would hold the connection of its parent open, and its end would
// not be seen. In the child the number stands for /dev/null, so that its owner may close it there as before.
//
// Any thread; the descriptor must be open as long as the object is.
#pragma once

#include <utility>

namespace tributary {

class NotInherited {
 public:
  NotInherited() = default;
  explicit NotInherited(int fd);
  NotInherited(NotInherited&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  NotInherited& operator=(NotInherited&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~NotInherited();

 private:
  int fd_ = -1;
};

}  // namespace tributary

// The socket that trainers report their rounds to (train/progress.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/result.h"

namespace tributary {

class ProgressSocket {
 public:
  // Binds `path`, in place of what an earlier process left there. kInvalidArgument if it is too long for a Unix socket.
  static Result<ProgressSocket> listen(const std::string& path);
  ProgressSocket(ProgressSocket&& other) noexcept;
  ProgressSocket& operator=(ProgressSocket&&) = delete;
  ~ProgressSocket();

  int fd() const { return fd_; }
  // Gives what has arrived to `take`, a datagram at a time. Never blocks.
  void drain(const std::function<void(std::string_view datagram)>& take) const;

 private:
  explicit ProgressSocket(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace tributary

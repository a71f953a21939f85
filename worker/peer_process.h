// PeerProcess: the process that connected to a Unix socket. Its end is seen at once, even if other processes (forked
// children) have the connection. The descriptor is the kernel's for that very process, while a process number may be
// reused.
//
// Nothing is watched if the kernel cannot name the process: before Linux 5.3, or before 6.5 if the process is in
// another process namespace (another container). Then only the connection's end is seen.
#pragma once

#include "common/system/file_descriptor.h"

namespace tributary {

class PeerProcess {
 public:
  // socket: connected. The process that connected to it, or that listened where it is connected to.
  explicit PeerProcess(int socket);

  // For poll(): readable when the process has ended. Below 0: nothing is watched.
  int fd() const { return fd_.get(); }
  // Returns whether the process had ended, and been reaped, before it could be watched.
  bool had_ended() const { return had_ended_; }
  void forget() { fd_.reset(); }

 private:
  FileDescriptor fd_;
  bool had_ended_ = false;
};

}  // namespace tributary

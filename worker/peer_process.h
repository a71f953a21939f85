// PeerProcess: the process that connected to a Unix socket, so that its end is seen at once, whoever else has the
// connection (children that it forked). Its descriptor is the kernel's for that very process; the number of a process
// may be another's by now.
//
// Nothing is watched where the kernel cannot tell the process: one before Linux 5.3, or before 6.5 if the process is in
// another process namespace (a container beside this one). The connection's end says then what it can.
#pragma once

#include "common/base/file_descriptor.h"

namespace tributary {

class PeerProcess {
 public:
  // socket: connected. The process that connected to it, or that listened where it is connected to.
  explicit PeerProcess(int socket);

  // For poll(): readable when the process has ended. Below 0: nothing is watched.
  int fd() const { return fd_.get(); }
  // Whether it had ended, and nobody knows it any more, before it could be watched.
  bool had_ended() const { return had_ended_; }
  void forget() { fd_.reset(); }

 private:
  FileDescriptor fd_;
  bool had_ended_ = false;
};

}  // namespace tributary

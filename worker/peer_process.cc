#include "worker/peer_process.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>

#include "common/system/socket_peer.h"

namespace tributary {
namespace {

// Linux 6.5; headers may be older.
constexpr int kPeerPidfd = 77;

FileDescriptor told_by(int socket) {
  int fd = -1;
  socklen_t size = sizeof fd;
  return FileDescriptor(::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &size) == 0 ? fd : -1);
}

}  // namespace

// A number that is another process's by now says that the one which connected has ended; then the connection's end is
// waited for as if nothing were watched, or that other process's.
PeerProcess::PeerProcess(int socket) : fd_(told_by(socket)) {
  const int pid = fd_ ? 0 : peer_at(socket).value_or(SocketPeer()).pid;
  if (pid <= 0) return;
  fd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  had_ended_ = !fd_ && errno == ESRCH;
}

}  // namespace tributary

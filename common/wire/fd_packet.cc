#include "common/wire/fd_packet.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/base/assert.h"

namespace tributary {

int send_packet(int socket, std::span<const iovec> parts, std::span<const int> fds) {
  TRIB_ASSERT(fds.size() <= kMaxPacketFds);
  msghdr packet{};
  packet.msg_iov = const_cast<iovec*>(parts.data());  // only read from
  packet.msg_iovlen = parts.size();
  alignas(cmsghdr) char ancillary[CMSG_SPACE(kMaxPacketFds * sizeof(int))] = {};
  if (!fds.empty()) {
    packet.msg_control = ancillary;
    packet.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* control = CMSG_FIRSTHDR(&packet);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(control), fds.data(), fds.size_bytes());
  }
  while (::sendmsg(socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno != EINTR) return errno == EWOULDBLOCK ? EAGAIN : errno;
  }
  return 0;
}

FdPacket receive_packet(int socket, std::span<const iovec> parts) {
  alignas(cmsghdr) char ancillary[CMSG_SPACE(kMaxPacketFds * sizeof(int))];
  msghdr packet{};
  packet.msg_iov = const_cast<iovec*>(parts.data());  // what they point to is written
  packet.msg_iovlen = parts.size();
  packet.msg_control = ancillary;
  packet.msg_controllen = sizeof ancillary;
  ssize_t size;
  do {
    size = ::recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  FdPacket received;
  if (size < 0) {
    received.error = errno == EWOULDBLOCK ? EAGAIN : errno;
    return received;
  }
  received.bytes = static_cast<std::size_t>(size);
  // Owned at once, so that none leaks whatever follows.
  for (cmsghdr* control = CMSG_FIRSTHDR(&packet); control != nullptr; control = CMSG_NXTHDR(&packet, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      received.fds.emplace_back(fd);
    }
  }
  received.truncated = (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return received;
}

}  // namespace tributary

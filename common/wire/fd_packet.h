// Packets over a Unix socket of type SOCK_SEQPACKET, with file descriptors besides the bytes (SCM_RIGHTS). The attach
// protocol and the links between lanes on one machine use them. Nothing here waits.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

#include "common/system/file_descriptor.h"

namespace tributary {

inline constexpr std::size_t kMaxPacketFds = 128;

// Returns 0, or errno. EAGAIN: the peer does not read. REQUIRES: at most kMaxPacketFds.
int send_packet(int socket, std::span<const iovec> parts, std::span<const int> fds);

struct FdPacket {
  int error = 0;           // errno; EAGAIN: nothing is there. 0 with 0 bytes: the peer is gone
  std::size_t bytes = 0;   // in the parts
  bool truncated = false;  // there was more, bytes or descriptors
  std::vector<FileDescriptor> fds;
};
FdPacket receive_packet(int socket, std::span<const iovec> parts);

}  // namespace tributary

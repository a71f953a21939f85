// The process at the other end of a connected Unix socket, as the kernel knows it: the one that connected, or listened.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace tributary {

struct SocketPeer {
  int pid = 0;  // 0: in a process namespace that this one does not see
  uid_t uid = 0;
};
// Returns the peer. Nothing: the kernel knows none, because it is no Unix socket, or not connected.
std::optional<SocketPeer> peer_at(int socket);

// Returns whether the peer may have our memory and messages: it is a process of this user, or of root.
bool is_trusted(const SocketPeer& peer);
// "process 17 of user 1000"
std::string in_words(const SocketPeer& peer);

}  // namespace tributary

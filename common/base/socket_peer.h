// The process at the other end of a connected Unix socket, as the kernel knows it: it connected, or it listened where
// was connected to.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace tributary {

struct SocketPeer {
  int pid = 0;  // 0: in a process namespace that this one does not see
  uid_t uid = 0;
};
// Nothing: the kernel does not say, because it is no Unix socket, or not connected.
std::optional<SocketPeer> peer_at(int socket);

// Memory and messages of ours go only to whoever may have them anyway: a process of this user, or of root's.
bool is_trusted(const SocketPeer& peer);
// "process 17 of user 1000"
std::string in_words(const SocketPeer& peer);

}  // namespace tributary

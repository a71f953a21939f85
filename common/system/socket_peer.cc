#include "common/system/socket_peer.h"

#include <sys/socket.h>
#include <unistd.h>

namespace tributary {

std::optional<SocketPeer> peer_at(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  return SocketPeer{credentials.pid, credentials.uid};
}

bool is_trusted(const SocketPeer& peer) {
  return peer.uid == ::geteuid() || peer.uid == 0;
}

std::string in_words(const SocketPeer& peer) {
  return "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid);
}

}  // namespace tributary

#include "common/daemon/supervisor.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/system/file_descriptor.h"

namespace tributary {

void tell_supervisor(const std::string& state) {
  const char* named = std::getenv("NOTIFY_SOCKET");
  const std::string_view path = named ? named : "";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A path, or a name that begins with '@' for an abstract socket's zero.
  if (path.size() < 2 || path.size() >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) return;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return;
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  [[maybe_unused]] const auto sent = ::sendto(socket.get(), state.data(), state.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                                              reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace tributary

#include "worker/local_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/system/file_descriptor.h"
#include "common/system/host_port.h"

namespace tributary {
namespace {

constexpr std::string_view kTcp = "tcp://";

}  // namespace

Result<std::string> local_address_towards(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcp)) return "127.0.0.1";
  const HostPort at = host_port(endpoint);
  const std::string host(at.host);
  const auto unreachable = [&](const std::string& why) {
    return fail(ErrorCode::kUnavailable, "no address of this machine leads to " + host + " (" + why + ")");
  };
  const Result<in_addr> address = ipv4_of(host);
  if (!address) return unreachable(address.error().message);
  const sockaddr_in to = socket_address(*address, at.port);
  // Connecting a UDP socket chooses the route, and with it the address.
  const FileDescriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in local{};
  socklen_t length = sizeof local;
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return unreachable(std::strerror(errno));
  }
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &local.sin_addr, text, sizeof text);
  return text;
}

}  // namespace tributary

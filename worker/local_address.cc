#include "worker/local_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/base/file_descriptor.h"

namespace tributary {
namespace {

constexpr std::string_view kTcp = "tcp://";

}  // namespace

Result<std::string> local_address_towards(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcp)) return "127.0.0.1";
  const std::size_t colon = endpoint.rfind(':');
  const std::string host = endpoint.substr(kTcp.size(), colon - kTcp.size());
  const std::string port = endpoint.substr(colon + 1);
  const auto unreachable = [&](const char* why) {
    return fail(ErrorCode::kUnavailable, "no address of this machine leads to " + host + " (" + why + ")");
  };
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return unreachable(::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  // Connecting a UDP socket chooses the route, and with it the address.
  const FileDescriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in local{};
  socklen_t length = sizeof local;
  if (!fd || ::connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0) {
    return unreachable(std::strerror(errno));
  }
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &local.sin_addr, text, sizeof text);
  return text;
}

}  // namespace tributary

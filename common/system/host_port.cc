#include "common/system/host_port.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <memory>

#include "common/system/file_descriptor.h"

namespace tributary {

Result<in_addr> ipv4_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    return fail(ErrorCode::kNotFound, "the name " + host + " is not known here (" + ::gai_strerror(error) + ")");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  return reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr;
}

int bind_error(in_addr host, std::string_view port) {
  const sockaddr_in whole = socket_address(host, port);
  const FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&whole), sizeof whole) == 0 ? 0 : errno;
}

bool is_elsewhere(std::string_view endpoint) {
  in_addr address{};
  if (ipc_path(endpoint) || ::inet_pton(AF_INET, std::string(host_port(endpoint).host).c_str(), &address) != 1) {
    return false;
  }
  return bind_error(address, "") == EADDRNOTAVAIL;
}

sockaddr_in socket_address(in_addr host, std::string_view port) {
  sockaddr_in whole{};
  std::uint16_t number = 0;
  std::from_chars(port.data(), port.data() + port.size(), number);
  whole.sin_family = AF_INET;
  whole.sin_addr = host;
  whole.sin_port = htons(number);
  return whole;
}

}  // namespace tributary

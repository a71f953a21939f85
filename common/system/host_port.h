// Addresses in the forms that we pass to ZeroMQ: "HOST:PORT", with or without "tcp://" before it, and the IPv4
// addresses that it resolves to; "ipc://PATH".
#pragma once

#include <netinet/in.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

struct HostPort {
  std::string_view host;  // of "[::1]" the text between the brackets
  std::string_view port;  // empty: there is none
};

constexpr HostPort host_port(std::string_view address) {
  if (const std::size_t scheme = address.find("://"); scheme != std::string_view::npos)
    address.remove_prefix(scheme + 3);
  const std::size_t colon = address.rfind(':');
  HostPort both{address.substr(0, colon), colon == std::string_view::npos ? "" : address.substr(colon + 1)};
  if (both.host.size() > 2 && both.host.front() == '[' && both.host.back() == ']')
    both.host = both.host.substr(1, both.host.size() - 2);
  return both;
}

inline constexpr std::string_view kIpcScheme = "ipc://";

// Returns PATH of "ipc://PATH". Nothing: an address of another kind.
constexpr std::optional<std::string_view> ipc_path(std::string_view address) {
  if (!address.starts_with(kIpcScheme)) return std::nullopt;
  return address.substr(kIpcScheme.size());
}

// Resolves a name, or an address in digits. A resolver that does not answer takes many seconds. kNotFound: with the
// reason why there is none.
Result<in_addr> ipv4_of(const std::string& host);
// Returns whether that host stands for all interfaces.
constexpr bool is_everywhere(std::string_view host) {
  return host == "0.0.0.0" || host == "*" || host == "::";
}
// Whether a socket could be bound there now: 0, or errno. port: as below.
int bind_error(in_addr host, std::string_view port);
// Returns whether the address in digits of "tcp://ADDRESS:PORT" is another machine's.
bool is_elsewhere(std::string_view endpoint);
// port: in digits; "" and "*" are 0.
sockaddr_in socket_address(in_addr host, std::string_view port);

}  // namespace tributary

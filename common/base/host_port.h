// "HOST:PORT", with or without "tcp://" before it.
#pragma once

#include <string_view>

namespace tributary {

struct HostPort {
  std::string_view host;  // of "[::1]" what is between the brackets
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

}  // namespace tributary

#include "worker/node/local_endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <memory>

#include "common/system/host_port.h"

namespace tributary {

bool is_local_endpoint(const std::string& endpoint) {
  constexpr std::string_view kTcp = "tcp://";
  if (!endpoint.starts_with(kTcp)) return ipc_path(endpoint) || endpoint.starts_with("inproc://");
  const std::string host = endpoint.substr(kTcp.size(), endpoint.rfind(':') - kTcp.size());
  if (host == "localhost" || host == "[::1]") return true;
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) != 1) return false;
  if (ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET) return true;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, ::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET) continue;
    if (reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr.s_addr == address.s_addr) return true;
  }
  return false;
}

}  // namespace tributary

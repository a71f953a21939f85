#include "server/coordinator/cluster/lane_address.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "common/system/host_port.h"

namespace tributary {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr unsigned kMaxPort = 65535;

tl::unexpected<Error> bad_bind(const std::string& bind, const std::string& why) {
  return fail(ErrorCode::kConfig, "[server] bind = \"" + bind + "\": " + why +
                                      "; use \"tcp://ADDRESS:PORT\" (lane i takes PORT + i), \"tcp://ADDRESS:*\" or "
                                      "\"ipc:///PATH/PREFIX\"");
}

}  // namespace

Result<std::string> lane_bind_address(const std::string& bind, LaneIndex lane) {
  if (const auto prefix = ipc_path(bind)) {
    std::string path(*prefix);
    if (path.empty()) return bad_bind(bind, "the path is missing");
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(path, error);
    if (!error) path = absolute.string();
    path += "-lane-" + std::to_string(lane.value);
    constexpr std::size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
    if (path.size() > kMaxPath) {
      return bad_bind(bind, "the socket's path " + path + " has " + std::to_string(path.size()) +
                                " characters, at most " + std::to_string(kMaxPath) + " are possible");
    }
    return std::string(kIpcScheme) + path;
  }
  if (!bind.starts_with(kTcp)) return bad_bind(bind, "the transport is neither tcp nor ipc");
  const std::size_t colon = bind.rfind(':');
  if (colon < kTcp.size()) return bad_bind(bind, "the port is missing");
  const std::string_view port = std::string_view(bind).substr(colon + 1);
  if (port == "*" || port == "0") return bind.substr(0, colon) + ":*";
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number > kMaxPort) {
    return bad_bind(bind, "\"" + std::string(port) + "\" is no port");
  }
  if (number + lane.value > kMaxPort) {
    return bad_bind(bind,
                    "lane " + std::to_string(lane.value) + " would need port " + std::to_string(number + lane.value));
  }
  return bind.substr(0, colon + 1) + std::to_string(number + lane.value);
}

Status check_ipc_free(const std::string& address) {
  const auto at = ipc_path(address);
  if (!at) return {};
  const std::string path(*at);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) return {};  // bind itself will refuse it
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return {};
  const int connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  const int error = connected == 0 ? 0 : errno;
  ::close(fd);
  // EAGAIN: a living listener whose backlog is full. EACCES: another user's.
  if (connected != 0 && error != EAGAIN && error != EACCES) return {};
  return fail(ErrorCode::kUnavailable,
              "cannot bind " + address + ": another process listens there; stop it or choose another path");
}

std::string advertised_endpoint(const std::string& bound, const std::string& advertise) {
  if (!bound.starts_with(kTcp)) return bound;
  const std::size_t colon = bound.rfind(':');
  std::string host = bound.substr(kTcp.size(), colon - kTcp.size());
  if (!advertise.empty()) {
    host = advertise;
  } else if (host == "0.0.0.0" || host == "*" || host == "[::]") {
    host = "127.0.0.1";
  }
  return std::string(kTcp) + host + bound.substr(colon);
}

}  // namespace tributary

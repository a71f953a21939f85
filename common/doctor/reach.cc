#include "common/doctor/reach.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/system/file_descriptor.h"
#include "common/system/host_port.h"

namespace tributary {
namespace {

// Addresses of hosts, each resolved once: a resolver that does not answer takes many seconds.
class Names {
 public:
  const Result<in_addr>& find(const std::string& host) {
    const auto [at, fresh] = known_.try_emplace(host, in_addr{});
    if (fresh) at->second = ipv4_of(host);
    return at->second;
  }

 private:
  std::map<std::string, Result<in_addr>> known_;
};

// A connection under way, or how it has ended.
class Attempt {
 public:
  // names: as they have been found so far.
  Attempt(const std::string& endpoint, Names& names) : result_{endpoint, {}, {}, {}} {
    if (const auto path = ipc_path(endpoint)) {
      begin_local(std::string(*path));
    } else {
      begin_tcp(names);
    }
  }

  int fd() const { return under_way_ ? fd_.get() : -1; }
  FileDescriptor take_connection() {
    return under_way_ || !result_.why_not.empty() ? FileDescriptor() : std::move(fd_);
  }
  void go_on() {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    ended(error);
  }
  Reach take() {
    if (under_way_) {
      fail("nothing has answered for " + std::to_string(kReachPatience.count() / 1000) + " s",
           "a firewall drops what goes there, or the address is another network's: open the port, or give an address "
           "of the network that both are in");
    }
    return std::move(result_);
  }

 private:
  void begin_tcp(Names& names) {
    const HostPort to = host_port(result_.endpoint);
    const Result<in_addr>& address = names.find(std::string(to.host));
    if (!address) return fail(address.error().message, "write its address, or make the name known (DNS, /etc/hosts)");
    const sockaddr_in whole = socket_address(*address, to.port);
    begin(AF_INET, reinterpret_cast<const sockaddr*>(&whole), sizeof whole);
  }
  void begin_local(const std::string& path) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    if (path.size() >= sizeof name.sun_path) return fail("its path is too long", "choose a shorter one");
    std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
    begin(AF_UNIX, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  }
  void begin(int family, const sockaddr* address, socklen_t size) {
    fd_ = FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    under_way_ = true;
    const int error = fd_ && ::connect(fd_.get(), address, size) == 0 ? 0 : errno;
    if (error != EINPROGRESS) ended(error);
  }
  void ended(int error) {
    under_way_ = false;
    // EAGAIN: a listener at the path has a full backlog.
    if (error == 0 || error == EAGAIN) return note_own_address();
    if (error == ECONNREFUSED || error == ENOENT) {
      return fail("nobody listens there", "is the daemon started, and is this its address and port?");
    }
    if (error == EHOSTUNREACH || error == ENETUNREACH) {
      return fail("no way leads there (" + std::string(std::strerror(error)) + ")",
                  "the address is of a network that this machine is not in: look at `ip route get ADDRESS`");
    }
    fail(std::strerror(error), "look at the address, and at this machine's network");
  }
  void note_own_address() {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char text[INET_ADDRSTRLEN] = {};
    if (::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 || own.ss_family != AF_INET) return;
    if (::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&own)->sin_addr, text, sizeof text))
      result_.from = text;
  }
  void fail(std::string why, std::string cure) {
    under_way_ = false;
    result_.why_not = std::move(why);
    result_.cure = std::move(cure);
  }

  Reach result_;
  FileDescriptor fd_;
  bool under_way_ = false;
};

// Tries all endpoints until each attempt has ended, or nothing has answered for too long.
std::vector<Attempt> attempt_all(std::span<const std::string> endpoints, Names& names) {
  std::vector<Attempt> attempts;
  for (const std::string& endpoint : endpoints) attempts.emplace_back(endpoint, names);
  const std::uint64_t until = steady_ms() + static_cast<std::uint64_t>(kReachPatience.count());
  for (std::uint64_t now = steady_ms(); now < until; now = steady_ms()) {
    std::vector<pollfd> waiting;
    std::vector<Attempt*> whose;
    for (Attempt& attempt : attempts) {
      if (attempt.fd() < 0) continue;
      waiting.push_back({attempt.fd(), POLLOUT, 0});
      whose.push_back(&attempt);
    }
    if (waiting.empty()) break;
    ::poll(waiting.data(), waiting.size(), static_cast<int>(until - now));
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) whose[i]->go_on();
    }
  }
  return attempts;
}

}  // namespace

std::vector<Reach> reach(const std::vector<std::string>& endpoints, const std::atomic<bool>& stopping) {
  std::vector<Reach> all;
  Names names;
  for (std::size_t at = 0; at < endpoints.size() && !stopping.load(std::memory_order_acquire); at += kReachAtOnce) {
    const std::size_t count = std::min(kReachAtOnce, endpoints.size() - at);
    std::vector<Attempt> attempts = attempt_all(std::span(endpoints).subspan(at, count), names);
    for (Attempt& attempt : attempts) all.push_back(attempt.take());
  }
  return all;
}

bool speaks_zmtp(const std::string& endpoint) {
  constexpr unsigned char kSignature = 0xFF;
  Names names;
  const FileDescriptor connection = attempt_all({&endpoint, 1}, names).front().take_connection();
  pollfd item{connection.get(), POLLIN, 0};
  unsigned char first = 0;
  return connection && ::poll(&item, 1, static_cast<int>(kReachPatience.count())) == 1 &&
         ::read(connection.get(), &first, 1) == 1 && first == kSignature;
}

}  // namespace tributary

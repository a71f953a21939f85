#include "common/doctor/daemon_checks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <thread>

#include "common/base/peer_clock.h"
#include "common/base/printed.h"
#include "common/base/quantity.h"
#include "common/base/version.h"
#include "common/doctor/check_list.h"
#include "common/doctor/reach.h"
#include "common/security/credentials.h"
#include "common/security/exposure.h"
#include "common/system/file_descriptor.h"
#include "common/system/host_port.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kGoodPeerTimeoutMs = 5000;  // what a machine that is busy or is moved may take
constexpr std::uint64_t kLeastDisk = 1ull << 30, kGoodDisk = 16ull << 30;

// Whether a socket could be bound there now: 0, or errno.
int bind_error(const std::string& endpoint) {
  const HostPort at = host_port(endpoint);
  const Result<in_addr> host = is_everywhere(at.host) ? in_addr{INADDR_ANY} : ipv4_of(std::string(at.host));
  return host ? tributary::bind_error(*host, at.port) : EADDRNOTAVAIL;
}

class Doctor {
 public:
  explicit Doctor(const Around& around) : around_(around) {}

  std::vector<Check> server(const ServerConfig& c) {
    out_.section("server " + std::to_string(c.index));
    keys(credentials_of(c));
    limits(c.peer_timeout_ms);
    if (may_coordinate(c)) listens("[server] coordinator", c.coordinators[c.index]);
    lanes_listen(c);
    listens("[server] admin", c.admin);
    if (!c.advertise.empty()) own_address("[server] advertise", c.advertise);
    told_address(c);
    store("[store] path", c.store_path, "parameters live as long as this process; set it to keep them");
    for (const std::string& root : c.checkpoint_roots) folder("[store] checkpoint_roots", root);
    if (around_.cluster && around_.cluster->servers != c.servers) {
      out_.problem(
          "servers",
          std::to_string(c.servers) + "; the coordinator waits for " + std::to_string(around_.cluster->servers),
          "make [server] servers the same in every server's configuration");
    }
    paths();
    return out_.take();
  }

  std::vector<Check> only_paths() {
    out_.section("paths");
    paths();
    return out_.take();
  }

  std::vector<Check> worker(const WorkerConfig& c) {
    out_.section("worker" + (c.name.empty() ? std::string() : " " + c.name));
    keys(credentials_of(c));
    limits(c.peer_timeout_ms);
    if (c.serve_coordinator) listens("[worker] coordinator", c.coordinators.front());
    listens("[worker] admin", c.admin);
    if (!c.address.empty()) own_address("[worker] address", c.address);
    socket(c.socket);
    if (!c.store_path.empty()) store("[store] path", c.store_path, {});
    lanes();
    paths();
    return out_.take();
  }

 private:
  void keys(const Result<Credentials>& credentials) {
    if (!credentials) return out_.problem("keys", "they cannot be used", credentials.error().message);
    out_.ok("keys", credentials->own ? "those of " + in_words(credentials->own->identity)
                                     : "none: this user only, or insecure");
  }

  void limits(std::uint32_t peer_timeout_ms) {
    const std::string found = "peers that are not heard for " + std::to_string(peer_timeout_ms) + " ms are lost";
    if (peer_timeout_ms >= kGoodPeerTimeoutMs) return out_.ok("time-outs", found);
    out_.note(
        "time-outs", found,
        "a machine that is busy, swaps or is moved is silent for longer, and its jobs begin again at another view: "
        "[limits] peer_timeout_ms = 10000 is usual");
  }

  // An address that this daemon binds.
  void listens(const std::string& key, const std::string& address) {
    if (address.empty() || around_.running || ipc_path(address) || is_interface(host_port(address).host)) return;
    const int error = bind_error(address);
    if (error == 0) return out_.ok(key, address + " is free");
    if (error == EADDRINUSE) {
      return out_.note(
          key, address + " is in use",
          "well, if this daemon runs already; else stop what listens there (`ss -ltnp` names it), or choose "
          "another port");
    }
    if (error == EADDRNOTAVAIL) return not_ours(key, address);
    out_.problem(key, address + " cannot be bound: " + std::strerror(error),
                 "choose another address or port, or run where this one is permitted");
  }

  // Lane i takes the port of [server] bind + i.
  void lanes_listen(const ServerConfig& c) {
    const std::string bind = lanes_bind(c);
    const HostPort at = host_port(bind);
    const std::uint16_t lanes = c.lanes != 0 ? c.lanes : default_lanes(std::thread::hardware_concurrency());
    if (!bind.starts_with("tcp://") || at.port == "*") return listens("[server] bind", bind);
    const std::string before = bind.substr(0, bind.rfind(':') + 1);
    const unsigned long port = std::strtoul(std::string(at.port).c_str(), nullptr, 10);
    for (std::uint16_t lane = 0; lane < lanes; ++lane) listens("[server] bind", before + std::to_string(port + lane));
  }

  // Checks an address at which others are to reach this daemon.
  void own_address(const std::string& key, const std::string& host) {
    in_addr v4{};
    in6_addr v6{};
    const bool number = ::inet_pton(AF_INET, host.c_str(), &v4) == 1 || ::inet_pton(AF_INET6, host.c_str(), &v6) == 1;
    if (!number) return;  // a name: connecting peers find out whether it leads here
    const bool ours =
        std::ranges::any_of(around_.interfaces, [&](const NetworkInterface& one) { return one.has(host); });
    if (ours) return out_.ok(key, host);
    out_.note(key, host + " is no address of this machine, which has " + own_addresses(),
              "right only behind a forwarded port; else write one of these");
  }

  // Checks the address that workers receive of a server that listens at all interfaces, or at the loopback.
  void told_address(const ServerConfig& c) {
    const std::string bind = lanes_bind(c);
    if (!c.advertise.empty()) return;
    const bool everywhere = is_everywhere(host_port(bind).host);
    if (!everywhere && !stays_on_machine(bind)) return;
    const bool alone = std::ranges::all_of(c.coordinators, [](const std::string& address) {
      return stays_on_machine(address) && !is_everywhere(host_port(address).host);
    });
    if (alone) return out_.ok("lanes", "reached from this machine only, as the coordinator is");
    const std::string where =
        ipc_path(bind) ? "a Unix socket, which they do not have" : "127.0.0.1, which is themselves";
    out_.problem("lanes", "workers on other machines are told to reach them at " + where,
                 everywhere
                     ? "set [server] advertise to an address of this machine: " + own_addresses()
                     : "set [server] bind to tcp://ADDRESS:PORT with an address of this machine: " + own_addresses());
  }

  // Returns whether `host` names an interface. ZeroMQ takes those, too, and reports it if they have no address.
  bool is_interface(std::string_view host) const {
    return std::ranges::find(around_.interfaces, host, &NetworkInterface::name) != around_.interfaces.end();
  }

  void not_ours(const std::string& key, const std::string& address) {
    out_.problem(key, address + " is no address of this machine, which has " + own_addresses(),
                 "write one of these, or 0.0.0.0 for all of them");
  }

  std::string own_addresses() const {
    std::vector<std::string> all;
    for (const NetworkInterface& interface : around_.interfaces) {
      if (interface.loopback) continue;
      for (const std::string& address : interface.addresses) {
        if (!address.starts_with("fe80:")) all.push_back(address + " (" + interface.name + ")");
      }
    }
    return all.empty() ? "none but the loopback's" : listed(all);
  }

  // Where trainers attach.
  void socket(const std::string& path) {
    if (around_.running) return;
    const fs::path parent = fs::absolute(path).parent_path();
    if (::access(parent.c_str(), W_OK) != 0) {
      return out_.problem("[worker] socket",
                          path + ": no file can be made in " + parent.string() + " (" + std::strerror(errno) + ")",
                          "make the folder, or choose a path that this user may write to");
    }
    out_.ok("[worker] socket", path);
  }

  void store(const std::string& key, const std::string& path, const std::string& without) {
    if (path.empty()) return out_.note(key, "not set", without);
    folder(key, path);
  }

  // A folder that is written to; the daemon makes it, and those above it.
  void folder(const std::string& key, const std::string& path) {
    std::error_code ignored;
    const fs::path absolute = fs::absolute(path, ignored).lexically_normal();
    if (fs::exists(absolute, ignored) && !fs::is_directory(absolute, ignored))
      return out_.problem(key, path + " is no folder", "choose a folder");
    fs::path there = absolute;
    while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
    if (::access(there.c_str(), W_OK | X_OK) != 0) {
      return out_.problem(key, path + ": " + there.string() + " cannot be written to (" + std::strerror(errno) + ")",
                          "make the folder, give it to this daemon's user, or choose another one");
    }
    struct statvfs disk {};
    if (::statvfs(there.c_str(), &disk) != 0) return out_.ok(key, path);
    const std::uint64_t free = disk.f_bavail * disk.f_frsize;
    out_.amount(key, free, kLeastDisk, kGoodDisk, path + ", " + memory_in_words(free) + " free",
                "a snapshot takes three times the model, and two are kept: make room, or choose another disk");
  }

  void lanes() {
    if (!around_.cluster) return;
    std::vector<std::string> endpoints;
    for (const ServerLanes& server : around_.cluster->lanes) {
      endpoints.insert(endpoints.end(), server.endpoints.begin(), server.endpoints.end());
    }
    const std::vector<Reach> reached = reach(endpoints, around_.stopping);
    if (reached.size() < endpoints.size()) return;  // broken off
    for (auto next = reached.begin(); const ServerLanes& server : around_.cluster->lanes) {
      lanes_of(server, std::span(next, server.endpoints.size()));
      next += static_cast<std::ptrdiff_t>(server.endpoints.size());
    }
  }

  void lanes_of(const ServerLanes& server, std::span<const Reach> reached) {
    if (reached.empty()) return;
    const std::string name = "to server " + std::to_string(server.shard.value);
    const bool elsewhere = !server.host.empty() && !around_.host.empty() && server.host != around_.host;
    if (elsewhere && stays_on_machine(reached.front().endpoint)) {
      return out_.problem(
          name,
          "its lanes are told to be at " + reached.front().endpoint + ", which is this machine, and it runs on another",
          "there, set [server] bind (or advertise) to an address that this machine reaches");
    }
    const auto lost = std::ranges::find_if(reached, [](const Reach& lane) { return !lane.why_not.empty(); });
    if (lost != reached.end()) {
      const auto count = std::ranges::count_if(reached, [](const Reach& lane) { return !lane.why_not.empty(); });
      return out_.problem(name,
                          std::to_string(count) + " of " + std::to_string(reached.size()) + " lanes are not reached; " +
                              lost->endpoint + ": " + lost->why_not,
                          lost->cure);
    }
    out_.ok(name, counted(reached.size(), "lane") + " reached at " + reached.front().endpoint +
                      (reached.size() == 1 ? "" : " ...") +
                      (reached.front().from.empty() ? "" : ", from " + reached.front().from));
  }

  void paths() {
    for (const std::string& path : around_.paths) {
      if (around_.stopping.load(std::memory_order_acquire)) return;
      if (::access(path.c_str(), R_OK) == 0) {
        out_.ok("path", path);
      } else {
        out_.problem("path", path + ": " + std::strerror(errno),
                     "copy or mount it here as on the other machines, readable by this daemon's user");
      }
    }
  }

  const Around& around_;
  CheckList out_;
};

}  // namespace

std::vector<Check> checks_of(const ServerConfig& config, const Around& around) {
  return Doctor(around).server(config);
}

std::vector<Check> checks_of(const WorkerConfig& config, const Around& around) {
  return Doctor(around).worker(config);
}

std::vector<Check> checks_of_paths(const Around& around) {
  return Doctor(around).only_paths();
}

std::vector<Check> checks_of_coordinator(const ClusterFacts& cluster, std::uint64_t now_ms) {
  CheckList out;
  out.section("coordinator");
  if (cluster.version == kVersion) {
    out.ok("version", cluster.version);
  } else {
    out.note("version", "it has " + cluster.version + ", and this is " + kVersion, "install one release everywhere");
  }
  PeerClock clock;
  clock.note(now_ms, cluster.clock_ms);
  if (clock.differs()) {
    out.problem("clock", "this machine's is " + clock.in_words(),
                "set it: chronyc makestep, or timedatectl set-ntp true");
  } else {
    out.ok("clock", "as this machine's");
  }
  const std::size_t there = cluster.lanes.size();
  const std::string servers = std::to_string(there) + " of " + counted(cluster.servers, "server") + " are there, " +
                              counted(cluster.workers, "worker");
  if (there < cluster.servers) {
    std::vector<std::string> missing;
    for (std::uint16_t index = 0; index < cluster.servers; ++index) {
      if (std::ranges::find(cluster.lanes, ShardIndex(index), &ServerLanes::shard) == cluster.lanes.end())
        missing.push_back(std::to_string(index));
    }
    out.problem("daemons", servers, "start server " + listed(missing) + ", or look at its log");
  } else {
    out.ok("daemons", servers);
  }
  return out.take();
}

}  // namespace tributary

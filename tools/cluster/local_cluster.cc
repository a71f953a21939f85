#include "tools/cluster/local_cluster.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "common/base/assert.h"
#include "common/base/exit_codes.h"
#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "common/files/durable_file.h"
#include "common/security/key_folder.h"
#include "common/system/private_folder.h"
#include "tools/cluster/run_folder.h"
#include "tools/cluster/stop_wait.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMaxNodes = 256;
constexpr std::uint32_t kMaxRanksPerNode = 64;
constexpr std::uint16_t kMaxServers = 64;
// A Unix socket's path must fit 107 characters, and ZeroMQ adds lane numbers to ours.
constexpr std::size_t kMaxSocketDir = 70;
constexpr milliseconds kReadyPoll{5}, kStatusTimeout{2000};
constexpr int kCoordinatorPort = 7070;  // on a host of its own
// Beyond what a daemon allows itself (stop_timeout_s) before it is killed.
constexpr std::chrono::seconds kExtraGrace{5};

std::string toml_string(const std::string& text) {
  // JSON's escapes are a subset of those of TOML's basic strings.
  return nlohmann::json(text).dump();
}

Status write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  const auto file = open_to_write(temporary);  // follows no symbolic link
  if (!file) return tl::unexpected(file.error());
  if (Status written = write_all(*file, temporary, text.data(), text.size()); !written) return written;
  if (::rename(temporary.c_str(), path.c_str()) != 0) return tl::unexpected(file_error("write", path, errno));
  return {};
}

// The line `ready {...}` of this start, once it is complete.
std::optional<nlohmann::json> find_ready(const std::string& log, std::uint64_t from) {
  std::ifstream in(log, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(from));
  std::string line;
  while (std::getline(in, line) && !in.eof()) {
    if (!line.starts_with("ready {")) continue;
    auto json = json_in(line.substr(6));
    if (json.is_object()) return json;
  }
  return std::nullopt;
}

}  // namespace

Transport transport_named(std::string_view name) {
  const auto at = std::ranges::find(kTransports, name);
  TRIB_ASSERT(at != std::end(kTransports));
  return static_cast<Transport>(at - std::begin(kTransports));
}

Result<std::uint16_t> free_port() {
  constexpr std::uint32_t kFirst = 20'000, kCount = 12'000;  // Linux gives out 32768 and up
  std::random_device seed;
  const std::uint32_t start = seed() % kCount;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const auto port = static_cast<std::uint16_t>(kFirst + (start + i) % kCount);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) break;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (is_free) return port;
  }
  return fail(ErrorCode::kUnavailable, "no free TCP port between 20000 and 32000 on 127.0.0.1");
}

Result<std::unique_ptr<LocalCluster>> LocalCluster::start(ClusterOptions options) {
  const auto in_range = [](const char* what, std::uint64_t value, std::uint64_t most,
                           std::uint64_t least = 1) -> Status {
    if (value >= least && value <= most) return {};
    return fail(ErrorCode::kInvalidArgument, std::string(what) + " = " + std::to_string(value) + ": must be " +
                                                 std::to_string(least) + " to " + std::to_string(most) +
                                                 " for a cluster on one machine");
  };
  if (auto ok = in_range("servers", options.servers, kMaxServers, 0); !ok) return tl::unexpected(ok.error());
  if (auto ok = in_range("nodes", options.nodes, kMaxNodes); !ok) return tl::unexpected(ok.error());
  if (auto ok = in_range("ranks per node", options.ranks_per_node, kMaxRanksPerNode); !ok)
    return tl::unexpected(ok.error());
  const std::uint16_t places = std::max<std::uint16_t>(options.servers, 1);
  if (auto ok = in_range("servers that may have the coordinator", options.coordinators, places); !ok)
    return tl::unexpected(ok.error());
  if (options.base_dir.empty()) return fail(ErrorCode::kInvalidArgument, "no base folder given");
  const auto fits = [](const std::vector<DaemonSite>& sites, std::size_t daemons) {
    return sites.empty() || sites.size() == daemons;
  };
  if (!fits(options.server_sites, options.servers) || !fits(options.worker_sites, options.nodes) ||
      (options.servers > 0 && options.server_sites.empty() != options.worker_sites.empty())) {
    return fail(ErrorCode::kInvalidArgument, "give every server and every worker a place, or none of them");
  }

  std::unique_ptr<LocalCluster> cluster(new LocalCluster(std::move(options)));
  if (auto ok = cluster->prepare(); !ok) return tl::unexpected(ok.error());
  // All servers at once, then all workers: their start-up overlaps.
  for (auto* daemons : {&cluster->servers_, &cluster->workers_}) {
    for (Daemon& daemon : *daemons) {
      if (auto ok = cluster->spawn(daemon); !ok) return tl::unexpected(ok.error());
    }
    for (Daemon& daemon : *daemons) {
      if (auto ok = cluster->wait_ready(daemon); !ok) {
        cluster->stop_now();
        return tl::unexpected(ok.error());
      }
    }
  }
  if (auto ok = cluster->write_cluster_file(); !ok) return tl::unexpected(ok.error());
  return cluster;
}

Status LocalCluster::prepare() {
  std::error_code error;
  const std::string& base = options_.base_dir;
  // An existing folder may be open to readers, as its owner wishes; not to writers, which the token's reading checks.
  if (Status ours = fs::exists(base, error) ? check_own_folder(base) : make_private_folder(base); !ours) return ours;
  options_.base_dir = fs::canonical(options_.base_dir, error).string();
  if (options_.bin_dir.empty()) options_.bin_dir = executable_dir();
  if (auto ok = claim_run_folder(options_.base_dir); !ok) return ok;
  if (auto ok = take_lock(); !ok) return ok;
  if (options_.fresh) {
    if (auto ok = remove_run(options_.base_dir); !ok) return ok;
  }
  socket_dir_ = options_.base_dir + "/sockets";
  if (socket_dir_.size() > kMaxSocketDir) {
    char name[] = "/tmp/tributary-XXXXXX";
    if (!::mkdtemp(name))
      return fail(ErrorCode::kIo, std::string("cannot create a folder in /tmp: ") + std::strerror(errno));
    socket_dir_ = name;
    own_socket_dir_ = true;
  }
  for (const std::string& folder : {socket_dir_, log_dir()}) {
    if (Status made = make_private_folder(folder); !made) return made;
  }
  if (Status made = make_keys(); !made) return made;
  return write_configs();
}

// Makes the keys that are missing; keys of an earlier run in this folder stay.
Status LocalCluster::make_keys() {
  std::error_code error;
  const KeyFolder keys{options_.base_dir + "/" + kKeysFolder};
  const std::string token = options_.base_dir + "/" + kAdminTokenFile;
  if (!fs::exists(token, error)) {
    if (Status written = write_secret(token, random_token()); !written) return written;
  }
  auto read = read_token(token);
  if (!read) return tl::unexpected(read.error());
  admin_token_ = std::move(*read);
  if (!options_.secure) return {};
  if (Status made = make_private_folder(keys.path); !made) return made;
  if (!fs::exists(keys.pair(kCoordinatorName), error)) {
    Status made = make_key_folder(keys, options_.servers == 0 ? Role::kWorker : Role::kServer);
    if (!made) return made;
  }
  const auto add = [&](const std::string& name, Role role) -> Status {
    if (fs::exists(keys.pair(name), error)) return {};
    const auto added = add_key(keys, name, role);
    return added ? Status() : tl::unexpected(added.error());
  };
  for (std::uint16_t i = 1; i < options_.servers; ++i) {
    if (Status added = add("server-" + std::to_string(i), Role::kServer); !added) return added;
  }
  for (std::uint32_t i = options_.servers == 0 ? 1 : 0; i < options_.nodes; ++i) {
    if (Status added = add("node-" + std::to_string(i), Role::kWorker); !added) return added;
  }
  return {};
}

// All peers are trusted on hosts of a network that we made, and where the caller asks for loopback ports without keys.
std::string LocalCluster::security(const std::string& name, bool coordinator) const {
  std::string text = "\n[security]\n";
  if (coordinator) text += "admin_token = " + toml_string(options_.base_dir + "/" + kAdminTokenFile) + "\n";
  if (!options_.secure) return text + (uses_ipc() ? "" : "insecure = true\n");
  const KeyFolder keys{options_.base_dir + "/" + kKeysFolder};
  const bool first = coordinator && (name == "server-0" || options_.servers == 0);
  text += "keys = " + toml_string(keys.pair(first ? kCoordinatorName : name)) + "\n";
  if (coordinator) text += "authorized = " + toml_string(keys.authorized()) + "\n";
  if (coordinator && coordinators_.size() == 1) return text;
  std::string all = toml_string(keys.coordinator());
  for (std::size_t i = 1; i < coordinators_.size(); ++i) {
    all += ", " + toml_string(keys.authorized() + "/server-" + std::to_string(i) + ".pub");
  }
  return text + "coordinator_key = [" + all + "]\n";
}

// Ports of loopback are every local user's; sockets in the base folder are this user's alone.
bool LocalCluster::uses_ipc() const {
  return options_.transport != Transport::kTcp && options_.worker_sites.empty();
}

Status LocalCluster::take_lock() {
  const std::string path = options_.base_dir + "/lock";
  lock_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) return fail(ErrorCode::kIo, "cannot open " + path + ": " + std::strerror(errno));
  const auto until = Clock::now() + grace();
  while (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    char text[32] = {};
    [[maybe_unused]] const auto got = ::pread(lock_fd_, text, sizeof text - 1, 0);
    const pid_t holder = static_cast<pid_t>(std::atol(text));
    // The process that started the cluster was killed: its daemons, which hold the lock too, are just stopping.
    const bool winding_down = holder > 0 && ::kill(holder, 0) != 0 && errno == ESRCH;
    if (!winding_down || Clock::now() >= until) {
      return fail(ErrorCode::kUnavailable, "a cluster is running in " + options_.base_dir + " (pid " +
                                               std::to_string(holder) +
                                               "); stop it first, or choose another folder with --base-dir");
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock_fd_, 0) != 0 || ::pwrite(lock_fd_, pid.data(), pid.size(), 0) < 0) {
    return fail(ErrorCode::kIo, "cannot write " + path + ": " + std::strerror(errno));
  }
  return {};
}

Status LocalCluster::write_configs() {
  const auto host = [](const std::vector<std::string>& hosts, std::uint32_t index) {
    return index < hosts.size() && !hosts[index].empty() ? "host = " + toml_string(hosts[index]) + "\n" : std::string();
  };
  const bool ipc = uses_ipc();
  for (std::uint16_t i = 0; i < options_.coordinators; ++i) {
    if (ipc) {
      coordinators_.push_back("ipc://" + socket_dir_ + "/coordinator" + (i == 0 ? "" : "-" + std::to_string(i)));
    } else if (!options_.worker_sites.empty()) {
      // A host of its own: no other process has taken the port.
      const DaemonSite& site = options_.servers == 0 ? options_.worker_sites[0] : options_.server_sites[i];
      coordinators_.push_back("tcp://" + site.address + ":" + std::to_string(kCoordinatorPort));
    } else {
      const auto port = free_port();
      if (!port) return tl::unexpected(port.error());
      coordinators_.push_back("tcp://127.0.0.1:" + std::to_string(*port));
    }
  }
  std::string coordinators;
  for (const std::string& address : coordinators_)
    coordinators += (coordinators.empty() ? "" : ", ") + toml_string(address);
  if (coordinators_.size() > 1) coordinators = "[" + coordinators + "]";
  const std::string limits = "heartbeat_ms = " + std::to_string(options_.heartbeat_ms) +
                             "\npeer_timeout_ms = " + std::to_string(options_.peer_timeout_ms) +
                             "\nstop_timeout_s = " + std::to_string(options_.stop_timeout_s) + "\n";
  const std::string lanes = options_.lanes == 0 ? "" : "lanes = " + std::to_string(options_.lanes) + "\n";
  const std::string log = "\n[log]\nlevel = " + toml_string(options_.log_level) + "\n";
  for (std::uint16_t i = 0; i < options_.servers; ++i) {
    const std::string number = std::to_string(i);
    const DaemonSite site = options_.server_sites.empty() ? DaemonSite{} : options_.server_sites[i];
    std::string text =
        "# Written by tributary for a cluster on one machine.\n[server]\nindex = " + number +
        "\nservers = " + std::to_string(options_.servers) + "\ncoordinator = " + coordinators +
        "\nbind = " + toml_string(ipc ? "ipc://" + socket_dir_ + "/server-" + number : "tcp://" + site.address + ":*") +
        "\n" + lanes + host(options_.server_hosts, i) +
        "admin = \"127.0.0.1:0\"\nbandwidth = " + std::to_string(site.bandwidth) + "\n";
    if (options_.store) {
      text += "\n[store]\npath = " + toml_string(store_dir(i)) +
              "\nio_mb_per_s = " + std::to_string(options_.store_io_mb_per_s) + "\n";
      if (options_.secure) text += "checkpoint_roots = [" + toml_string(options_.base_dir) + "]\n";
    }
    text += "\n[limits]\n" + limits + security("server-" + number, i < options_.coordinators) +
            (options_.secure ? "payload = " + toml_string(word(*options_.secure)) + "\n" : "") + log;
    const std::string config = options_.base_dir + "/server-" + number + ".toml";
    if (auto ok = write_file(config, text); !ok) return ok;
    Daemon daemon;
    daemon.name = "server " + number;
    daemon.argv = {options_.bin_dir + "/tributary-server", "--config", config};
    daemon.log_file = log_dir() + "/server-" + number + ".log";
    daemon.network_namespace = site.network_namespace;
    servers_.push_back(std::move(daemon));
  }
  for (std::uint32_t i = 0; i < options_.nodes; ++i) {
    const std::string number = std::to_string(i);
    const DaemonSite site = options_.worker_sites.empty() ? DaemonSite{} : options_.worker_sites[i];
    Daemon daemon;
    daemon.name = "worker " + number;
    daemon.socket = socket_dir_ + "/worker-" + number + ".sock";
    const std::string config = options_.base_dir + "/worker-" + number + ".toml";
    const bool shares = options_.transport == Transport::kShm;
    std::string text = "# Written by tributary for a cluster on one machine.\n[worker]\ncoordinator = " + coordinators +
                       "\nname = \"" +
                       (options_.secure && options_.servers == 0 && i == 0 ? kCoordinatorName : "node-" + number) +
                       "\"\nsocket = " + toml_string(daemon.socket) + "\n" + lanes + host(options_.worker_hosts, i) +
                       "local_transport = " + (shares ? "\"auto\"" : "\"socket\"") +
                       "\nadmin = \"127.0.0.1:0\"\nbandwidth = " + std::to_string(site.bandwidth) + "\n" +
                       (options_.servers == 0 && i == 0 ? "serve_coordinator = true\n" : "");
    if (!options_.worker_sites.empty()) text += "address = " + toml_string(site.address) + "\n";
    if (options_.store)
      text += "\n[store]\npath = " + toml_string(options_.base_dir + "/store-worker-" + number) + "\n";
    text += "\n[limits]\n";
    if (options_.window_bytes != 0) text += "window_bytes = " + std::to_string(options_.window_bytes) + "\n";
    text += limits + security("node-" + number, options_.servers == 0 && i == 0) + log + options_.extra_worker_toml;
    if (auto ok = write_file(config, text); !ok) return ok;
    daemon.argv = {options_.bin_dir + "/tributary-worker", "--config", config};
    daemon.log_file = log_dir() + "/worker-" + number + ".log";
    daemon.network_namespace = site.network_namespace;
    workers_.push_back(std::move(daemon));
  }
  return {};
}

Status LocalCluster::spawn(Daemon& daemon) {
  daemon.log_from = file_bytes(daemon.log_file);
  auto process = Process::spawn({.argv = daemon.argv,
                                 .log_file = daemon.log_file,
                                 .environment = {},
                                 .inherit_fd = lock_fd_,
                                 .network_namespace = daemon.network_namespace});
  if (!process) return tl::unexpected(process.error());
  daemon.process = std::move(*process);
  return {};
}

Status LocalCluster::wait_ready(Daemon& daemon) {
  const auto until = Clock::now() + kReadyTimeout;
  while (true) {
    const auto status = daemon.process.poll();  // before the log is read: what it said last is then seen
    if (const auto ready = find_ready(daemon.log_file, daemon.log_from)) {
      if (const auto admin = ready->find("admin"); admin != ready->end() && admin->is_string()) daemon.admin = *admin;
      daemon.lanes.clear();
      if (const auto lanes = ready->find("lanes"); lanes != ready->end() && lanes->is_array()) {
        for (const auto& lane : *lanes) {
          if (lane.is_string()) daemon.lanes.push_back(lane);
        }
      }
      return {};
    }
    if (status) {
      return fail(ErrorCode::kUnavailable, how_ended(daemon, *status));
    }
    if (Clock::now() >= until) {
      return fail(ErrorCode::kUnavailable, daemon.name + " is not ready after " +
                                               std::to_string(kReadyTimeout.count()) + " s; the last lines of " +
                                               daemon.log_file + ":\n" +
                                               last_lines(daemon.log_file, kReportedLogLines, daemon.log_from));
    }
    std::this_thread::sleep_for(kReadyPoll);
  }
}

// It is ready when the coordinator knows it: of several, the coordinator's own first.
Status LocalCluster::restart(Daemon& daemon) {
  if (auto ok = spawn(daemon); !ok) return ok;
  if (auto ok = wait_ready(daemon); !ok) return ok;
  return write_cluster_file();
}

Status LocalCluster::write_cluster_file() {
  nlohmann::json servers = nlohmann::json::array(), workers = nlohmann::json::array();
  for (const Daemon& d : servers_) {
    servers.push_back(
        {{"name", d.name}, {"pid", d.process.pid()}, {"admin", d.admin}, {"lanes", d.lanes}, {"log", d.log_file}});
  }
  for (const Daemon& d : workers_) {
    workers.push_back(
        {{"name", d.name}, {"pid", d.process.pid()}, {"admin", d.admin}, {"socket", d.socket}, {"log", d.log_file}});
  }
  const nlohmann::json all = {
      {"pid", ::getpid()}, {"coordinator", coordinator()}, {"servers", servers}, {"workers", workers}};
  return write_file(options_.base_dir + "/cluster.json", all.dump(2) + "\n");
}

Daemon& LocalCluster::coordinator_daemon() {
  if (servers_.empty()) return workers_.front();
  if (coordinators_.size() == 1) return servers_.front();
  const auto holder = std::ranges::find_if(
      servers_, [](Daemon& server) { return server.process && server.process.running() && has_coordinator(server); });
  return holder == servers_.end() ? servers_.front() : *holder;
}

bool LocalCluster::has_coordinator(const Daemon& server) {
  const auto status = http_get(server.admin, "/status", kStatusTimeout);
  const auto json = nlohmann::json::parse(status ? *status : std::string(), nullptr, false);
  return json.is_object() && json.contains("coordinator");
}

std::optional<std::string> LocalCluster::failure() {
  for (auto* daemons : {&servers_, &workers_}) {
    for (Daemon& d : *daemons) {
      if (const auto status = d.process.poll()) return how_ended(d, *status);
    }
  }
  for (Trainer& t : trainers_) {
    const auto status = t.process.poll();
    if (status && !status->ok() && status->code != kExitStopped) return how_ended(t, *status);
  }
  return std::nullopt;
}

milliseconds LocalCluster::grace() const {
  return std::chrono::seconds(options_.stop_timeout_s) + kExtraGrace;
}

// Signals all daemons before it waits for the first. Only a daemon that does not answer any more is killed.
void LocalCluster::end(const std::vector<Daemon*>& daemons, std::vector<std::string>& killed) {
  for (Daemon* d : daemons) d->process.send_signal(SIGTERM);
  StopWait wait(grace());
  for (Daemon* d : daemons) {
    if (!d->process || !d->process.running()) continue;
    const auto answers = [&](milliseconds within) { return http_get(d->admin, "/status", within).has_value(); };
    if (wait.ended(d->process, answers)) continue;
    d->process.terminate(milliseconds(0));
    killed.push_back(d->name);
  }
}

// Ends all of them, that one last.
void LocalCluster::end_but(std::vector<Daemon>& daemons, Daemon* last, std::vector<std::string>& killed) {
  std::vector<Daemon*> first;
  for (Daemon& d : daemons) {
    if (&d != last) first.push_back(&d);
  }
  end(first, killed);
  if (last) end({last}, killed);
}

std::vector<std::string> LocalCluster::stop_training() {
  std::vector<std::string> killed;
  end_but(workers_, servers_.empty() && !workers_.empty() ? &workers_.front() : nullptr, killed);
  // With their workers gone, trainers leave by themselves.
  wait_for_trainers(options_.trainer_grace);
  for (Trainer& t : trainers_) {
    if (!t.process.running()) continue;
    t.process.terminate(milliseconds(0));
    killed.push_back(t.name());
  }
  return killed;
}

std::vector<std::string> LocalCluster::stop() {
  std::vector<std::string> killed = stop_training();
  end_but(servers_, servers_.empty() ? nullptr : &coordinator_daemon(), killed);
  std::error_code ignored;
  fs::remove(options_.base_dir + "/cluster.json", ignored);
  fs::remove_all(socket_dir_, ignored);
  if (lock_fd_ >= 0) ::close(lock_fd_);
  lock_fd_ = -1;
  return killed;
}

void LocalCluster::tell_trainers() {
  for (Trainer& t : trainers_) t.process.send_signal(SIGTERM);
}

std::vector<std::string> LocalCluster::stop_now() {
  tell_trainers();
  wait_for_trainers(options_.trainer_grace);
  for (Trainer& t : trainers_) {
    t.process.terminate(milliseconds(0));
    t.process.end_rest();
  }
  return stop();
}

LocalCluster::~LocalCluster() {
  if (lock_fd_ >= 0 && !socket_dir_.empty()) {
    stop();
  } else if (lock_fd_ >= 0) {
    ::close(lock_fd_);
  }
}

}  // namespace tributary

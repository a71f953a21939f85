// LocalCluster: real tributary-server and tributary-worker daemons on this machine, over Unix sockets, loopback or
// shared memory. `tributary up`, the benchmarks and the end-to-end tests start it.
//
// Everything it writes lies in one folder, so that the same folder continues the same run:
//     lock              held by this process and, inherited, by every daemon: one cluster at a time
//     cluster.json      who runs where, while it runs; `tributary status --base-dir` reads it
//     server-N.toml, worker-N.toml, store-N/, sockets/, logs/
//     admin.token, keys/       of the admin ports; of a cluster with keys
//     .tributary-run    says that all this is ours (tools/cluster/run_folder.h)
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/config/choice.h"
#include "tools/cluster/process.h"

namespace tributary {

// The transport between workers and servers. kShm: messages over Unix sockets (between hosts of their own over tcp),
// payloads in shared memory, as the daemons choose by themselves on one machine; with the others payloads go over the
// socket, too. kTcp is for measurements: without keys every user of the machine may connect (insecure).
enum class Transport { kTcp, kIpc, kShm };
inline constexpr const char* kTransports[] = {"tcp", "ipc", "shm"};  // as on the command line
constexpr const char* transport_name(Transport transport) {
  return kTransports[static_cast<int>(transport)];
}
// REQUIRES: one of kTransports.
Transport transport_named(std::string_view name);

// The place of a daemon and the trainers next to it: a network namespace stands for a host.
struct DaemonSite {
  std::string network_namespace;      // its path; empty: the caller's
  std::string address = "127.0.0.1";  // IPv4, as the others reach it
  double bandwidth = 1.0;             // of its link, relative to the others
};

struct ClusterOptions {
  std::uint16_t servers = 1;       // 0: worker 0 serves the coordinator, for all-reduce jobs
  std::uint16_t coordinators = 1;  // servers that may have the coordinator (docs/failover.md)
  std::uint32_t nodes = 1;
  std::uint32_t ranks_per_node = 1;
  std::uint16_t lanes = 0;  // of every daemon; 0: they choose
  Transport transport = Transport::kShm;
  // By number; empty: all on this machine's loopback. Not with transport kIpc.
  std::vector<DaemonSite> server_sites, worker_sites;
  std::string base_dir;
  bool fresh = false;  // remove what an earlier run left in base_dir first
  bool store = true;   // false: nothing is persisted
  std::uint32_t store_io_mb_per_s = 200;
  std::uint32_t window_bytes = 0;  // of the workers; 0: they choose
  std::uint32_t heartbeat_ms = 500;
  std::uint32_t peer_timeout_ms = 10'000;
  std::uint32_t stop_timeout_s = 20;
  std::uint32_t attach_timeout_s = 0;     // of trainers; 0: they choose
  std::chrono::seconds trainer_grace{5};  // for trainers to leave once their workers are gone
  std::string log_level = "info";
  std::optional<PayloadSecurity> secure = {};  // every daemon gets keys, in base_dir/keys
  std::string bin_dir;                         // folder of the daemons' programs; empty: of the running one
  // The host that each daemon reports, as if they were on several machines: by index, missing or empty for this
  // machine. For tests of placement.
  std::vector<std::string> server_hosts, worker_hosts;
  std::string extra_worker_toml;  // added to every worker's configuration file: for measurements
};

struct Daemon {
  std::string name;  // "server 0", "worker 1"
  std::vector<std::string> argv;
  Process process;
  std::string log_file;
  std::uint64_t log_from = 0;      // where this start's lines begin in log_file
  std::string admin;               // HOST:PORT
  std::string socket;              // workers: trainers attach here
  std::vector<std::string> lanes;  // servers: endpoints
  std::string network_namespace;   // as in DaemonSite
};

struct Trainer {
  std::uint32_t rank = 0;
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;
  Process process;
  std::string log_file;
  std::string output_file;                      // its standard output; empty: in the log, too
  std::uint64_t log_from = 0, output_from = 0;  // where this start's lines begin
  std::string network_namespace;
  std::uint16_t meeting_port = 0;  // where it meets the others (MASTER_PORT); 0: none is named

  std::string name() const { return "trainer of rank " + std::to_string(rank); }
};

// A program that is run once for each rank. Its environment has the rank's topology (ARCHITECTURE.md, "Words"), as
// torchrun's does: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK and GROUP_WORLD_SIZE, each with
// TRIBUTARY_ in front, too. TRIBUTARY_SOCKET, _PROGRESS and _ATTACH_TIMEOUT: its worker's socket, the socket for
// progress, and the attach's time-out.
struct TrainerOptions {
  std::vector<std::string> command;  // argv[0]: path of the program
  std::string progress_socket;       // for reports of each round; empty: none
  bool meet = false;                 // a port of this machine is named for torch.distributed (MASTER_PORT)
  bool output_apart = false;         // rank 0's standard output goes to logs/trainer-0.out instead of its log
  // For elastic jobs: the nodes of the trainers, and the number of nodes in their environment. Empty and 0: all.
  std::vector<std::uint32_t> nodes;
  std::uint32_t world_nodes = 0;
};

class LocalCluster {
 public:
  static constexpr std::chrono::seconds kReadyTimeout{30};
  static constexpr std::size_t kReportedLogLines = 15;

  // Starts every daemon and waits until all are ready. Spawns children: call it on a thread that outlives the cluster.
  // Errors: kUnavailable if base_dir is in use or a daemon ended or is not ready in time (with the last lines of its
  // log); kInvalidArgument for impossible numbers; kIo.
  static Result<std::unique_ptr<LocalCluster>> start(ClusterOptions options);
  ~LocalCluster();  // stop()
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // The command of the built-in trainer. overrides: "section.key=value", as --set takes them.
  std::vector<std::string> train_command(const std::string& job_file, const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& arguments) const;
  // Starts a trainer for each rank. May be called again later for other nodes.
  Status start_trainers(const TrainerOptions& options);
  bool trainers_running();
  // Names a process that ended and should not have, with the last lines of its log: a daemon in any case, a trainer
  // unless it trained to the end or was stopped cleanly.
  std::optional<std::string> failure();
  // True if all trainers ended within `timeout`.
  bool wait_for_trainers(std::chrono::milliseconds timeout);

  // Starts a daemon again that has ended, with the same configuration.
  Status restart(Daemon& daemon);
  // Starts a trainer again that has ended, by its place in trainers() (its rank, where all were started at once).
  Status restart_trainer(std::uint32_t index);

  // Stops cleanly: SIGTERM to the workers, which stops the job at a round boundary and makes the trainers leave; then
  // to the servers. The daemon with the coordinator (server 0, or worker 0) stops last. A process that does not end in
  // time is killed. Returns the names of those; empty: all went well.
  std::vector<std::string> stop();
  // Signals the trainers, before stop(): no worker notifies those that are in no view of the job.
  void tell_trainers();
  // The first half of stop(): workers and trainers have ended then, servers still report the state of the job.
  std::vector<std::string> stop_training();
  // Stops trainers first, then as stop(): for a run that has failed anyway.
  std::vector<std::string> stop_now();

  const ClusterOptions& options() const { return options_; }
  const std::string& admin_token() const { return admin_token_; }  // of server 0's admin port
  std::vector<Daemon>& servers() { return servers_; }
  std::vector<Daemon>& workers() { return workers_; }
  std::vector<Trainer>& trainers() { return trainers_; }
  // The server that has the coordinator now, or worker 0 where there are no servers. Where several may have it, they are
  // asked; server 0 if nobody says so.
  Daemon& coordinator_daemon();
  static bool has_coordinator(const Daemon& server);                 // it says so
  const std::string& base_dir() const { return options_.base_dir; }  // absolute
  std::string store_dir(std::size_t server) const { return base_dir() + "/store-" + std::to_string(server); }
  const std::string& socket_dir() const { return socket_dir_; }
  const std::string& coordinator() const { return coordinators_.front(); }
  std::string log_dir() const { return options_.base_dir + "/logs"; }

 private:
  explicit LocalCluster(ClusterOptions options) : options_(std::move(options)) {}
  Status prepare();
  Status make_keys();
  // The section of a daemon's configuration. coordinator: the daemon may have the coordinator.
  std::string security(const std::string& name, bool coordinator) const;
  bool uses_ipc() const;  // between workers and servers; else tcp
  Status take_lock();
  Status write_configs();
  Status spawn(Daemon& daemon);
  Status spawn(Trainer& trainer);
  Status wait_ready(Daemon& daemon);
  Status write_cluster_file();
  std::chrono::milliseconds grace() const;
  void end(const std::vector<Daemon*>& daemons, std::vector<std::string>& killed);
  void end_but(std::vector<Daemon>& daemons, Daemon* last, std::vector<std::string>& killed);

  ClusterOptions options_;
  std::string admin_token_;
  std::string socket_dir_;
  bool own_socket_dir_ = false;            // outside base_dir: to be removed
  std::vector<std::string> coordinators_;  // addresses
  int lock_fd_ = -1;
  // Destroyed in reverse order: trainers, then workers, then servers.
  std::vector<Daemon> servers_;
  std::vector<Daemon> workers_;
  std::vector<Trainer> trainers_;
  std::uint16_t meeting_port_ = 0;  // of trainers that are started now
};

// The command of a trainer that takes its job on its command line, as tributary-train does. program: with its first
// arguments.
std::vector<std::string> job_command(std::vector<std::string> program, const std::string& job_file,
                                     const std::vector<std::string>& overrides,
                                     const std::vector<std::string>& arguments);

// "worker 1 (pid 7) was killed by signal 9 (Killed); the last lines of LOG:" and these.
std::string how_ended(const Daemon& daemon, const ExitStatus& status);
std::string how_ended(const Trainer& trainer, const ExitStatus& status);

// The last line of a trainer's output that is a JSON object with a digest (tributary-train --json); empty if there is
// none yet.
std::string trainer_result(const Trainer& trainer);

// Returns a TCP port of 127.0.0.1 that no process listens on, outside the range that the kernel gives to outgoing
// connections (so that it is not taken by chance before it is used).
Result<std::uint16_t> free_port();

}  // namespace tributary

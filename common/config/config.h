// Configuration structs. config_toml.h reads them from TOML with line-numbered errors; job_json.h turns a job into the
// canonical JSON that daemons exchange, hash and compare.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/config/choice.h"
#include "common/config/optimizer_config.h"
#include "common/system/private_folder.h"

namespace tributary {

struct LogConfig {
  std::string level = "info";  // trace, debug, info, warn, error
  std::string file;            // empty: standard error
  LogFormat format = LogFormat::kText;
};

// Bounds of a link's bandwidth, in the cluster's unit. Outside them the placement arithmetic loses precision.
inline constexpr double kMinBandwidth = 1e-3, kMaxBandwidth = 1e15;
inline bool is_bandwidth(double value) {
  return value >= kMinBandwidth && value <= kMaxBandwidth;
}

// Keys and trust (docs/security.md). The strings are paths of files, unless a comment states otherwise.
struct SecurityConfig {
  std::string keys;  // this daemon's pair; empty: none, and it is reached from this machine only
  // The coordinator's public key, or the list of them, in the order of the addresses. A server that is the only one that
  // may have the coordinator needs none.
  std::vector<std::string> coordinator_keys;
  std::string authorized;                // on the coordinator: a folder with the public keys of admitted peers
  std::string admin_token;               // of the admin port; empty: none
  std::vector<std::string> admin_hosts;  // further names under which clients reach the admin port
  bool insecure = false;                 // every host in the network is trusted
  PayloadSecurity payload = PayloadSecurity::kEncrypt;  // of a server's lanes; workers follow it
  std::string network;  // "trusted": so that all-reduce jobs may run in a cluster with keys; empty: it is not
};

// Servers that may have the coordinator, at most.
inline constexpr std::uint16_t kMaxCoordinators = 16;

// Returns the coordinator's default address: a socket in this user's run folder.
std::string default_coordinator();

struct ServerConfig {
  std::uint16_t index = 0;    // 0 is the coordinator, or the first that may be
  std::uint16_t servers = 1;  // how many the cluster has; the coordinator waits for all
  // Server k binds the k-th, and may have the coordinator (docs/failover.md); all others connect.
  std::vector<std::string> coordinators{default_coordinator()};
  // Lanes' sockets: "tcp://ADDR:PORT" (lane i takes PORT+i), "tcp://ADDR:*" or "ipc://PREFIX"; empty: lanes_bind().
  std::string bind;
  std::string advertise;    // host that workers reach the lanes at; empty: the address of `bind`, or 127.0.0.1
  std::uint16_t lanes = 0;  // 0: from the machine (default_lanes)
  std::string admin = "127.0.0.1:0";  // HTTP; port 0 picks one; empty: off
  // The machine and its link: placement adds up the servers that share a link (common/math/placement.h).
  std::string host;                           // empty: found out (common/system/host_identity.h)
  double bandwidth = 1.0;                     // relative to the other hosts' links
  std::string store_path;                     // empty: nothing is persisted
  std::vector<std::string> checkpoint_roots;  // below which orders may put checkpoints; empty: anywhere, without keys
  std::uint32_t store_io_mb_per_s = 200;      // budget of the snapshot writer, MB/s (1e6 bytes)
  std::uint64_t max_memory = 0;  // bytes that jobs may make the server take; 0: three quarters of usable_memory()
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t peer_timeout_ms = 10000;  // a peer that is silent for this long is lost
  std::uint32_t stop_timeout_s = 30;      // how long a graceful stop may take
  SecurityConfig security;
  LogConfig log;
};

// Returns whether the coordinator may be in this server's process.
inline bool may_coordinate(const ServerConfig& config) {
  return config.index < config.coordinators.size();
}

// Returns the lanes' address: `bind`, or next to the coordinator's socket, or at free ports of loopback.
std::string lanes_bind(const ServerConfig& config);

struct WorkerConfig {
  std::vector<std::string> coordinators{default_coordinator()};
  std::string name;                              // in messages and status; empty: the host's name
  std::string socket = default_worker_socket();  // trainers attach here
  std::string admin = "127.0.0.1:0";
  std::string host;        // as ServerConfig::host
  double bandwidth = 1.0;  // as ServerConfig::bandwidth
  LocalTransport local_transport = LocalTransport::kAuto;
  // For all-reduce jobs.
  bool serve_coordinator = false;  // also run the coordinator (a cluster without servers)
  std::string address;      // where other workers reach this one; empty: this machine's address towards the coordinator
  std::string store_path;   // checkpoints of jobs whose node 0 this is; empty: none are kept
  std::uint16_t lanes = 0;  // 0: from the machine
  std::uint32_t window_bytes = 0;       // cap on unacknowledged bytes per lane; 0: 16 MiB, adapted below that
  std::uint64_t max_shared_memory = 0;  // bytes for attached jobs; 0: half of usable_memory()
  NodeReduction node_reduction = NodeReduction::kAuto;
  std::uint32_t collective_timeout_ms = 30000;  // a collective that takes longer hangs
  NcclUse nccl = NcclUse::kAuto;
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t peer_timeout_ms = 10000;
  std::uint32_t stop_timeout_s = 30;
  SecurityConfig security;
  LogConfig log;
};

// Each section of a job has, next to its members, the list of its keys, which readers and writers walk
// (common/config/job_fields.h).
struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kConstant;  // its key is "name"
  std::uint64_t warmup_rounds = 0;              // linear warm-up from lr/warmup_rounds, before any schedule
  std::uint64_t total_rounds = 0;               // linear, cosine: min_lr_ratio is reached in the step after so many
  double min_lr_ratio = 0.0;
  std::uint64_t step_rounds = 0;  // step: every so many rounds ...
  double step_gamma = 0.1;        // ... multiply by this

  static void fields(auto& c, auto&& key) {
    key("name", c.kind);
    key("warmup_rounds", c.warmup_rounds);
    key("total_rounds", c.total_rounds);
    key("min_lr_ratio", c.min_lr_ratio);
    key("step_rounds", c.step_rounds);
    key("step_gamma", c.step_gamma);
  }
};

struct SnapshotConfig {
  std::uint32_t every_s = 60;      // seconds between consistent snapshots; 0: by rounds only
  std::uint64_t every_rounds = 0;  // rounds between consistent snapshots; 0: by time only
  std::uint32_t copies = 0;        // servers that have each part of one; 0: two, where servers are on several machines

  static void fields(auto& c, auto&& key) {
    key("every_s", c.every_s);
    key("every_rounds", c.every_rounds);
    key("copies", c.copies);
  }
};

// Checkpoints that the coordinator orders by itself (docs/snapshots.md).
struct CheckpointConfig {
  std::string dir;              // absolute, and every server sees it under this path; empty: none are made
  std::uint32_t every_s = 600;  // seconds from one to the next; 0: only where training stops
  std::uint32_t keep = 2;       // so many of them stay, the newest; 0: all

  static void fields(auto& c, auto&& key) {
    key("dir", c.dir);
    key("every_s", c.every_s);
    key("keep", c.keep);
  }
};

// Settings of tributary-train; servers ignore them, but they belong to the job's identity.
struct TrainConfig {
  std::string dataset = "fashion-mnist";
  std::string data_dir = "/usr/share/datasets/fashion-mnist";
  std::vector<std::uint32_t> hidden = {256, 128};
  std::uint32_t epochs = 5;
  // Samples per round (mode local_sgd: per local step) over all ranks; must divide by world_size * accumulation.
  std::uint32_t global_batch = 256;
  std::uint32_t accumulation = 1;  // micro-batches of them per rank
  std::uint64_t seed = 1;
  std::uint64_t max_rounds = 0;  // 0: all epochs
  std::uint32_t eval_every_epochs = 1;

  static void fields(auto& c, auto&& key) {
    key("dataset", c.dataset);
    key("data_dir", c.data_dir);
    key("hidden", c.hidden);
    key("epochs", c.epochs);
    key("global_batch", c.global_batch);
    key("accumulation", c.accumulation);
    key("seed", c.seed);
    key("max_rounds", c.max_rounds);
    key("eval_every_epochs", c.eval_every_epochs);
  }
};

struct AllreduceConfig {
  AllreduceAlgorithm algorithm = AllreduceAlgorithm::kHierarchical;

  static void fields(auto& c, auto&& key) { key("algorithm", c.algorithm); }
};

// Mode sync: a round's treatment of late nodes.
struct SyncConfig {
  // A rank computes for this long in a round, sends the sum of the samples done, and skips the rest; 0: no limit.
  std::uint32_t deadline_ms = 0;

  static void fields(auto& c, auto&& key) { key("deadline_ms", c.deadline_ms); }
};

// Modes ssp and async: pushes are applied as they arrive (server/shard/shard_core.h).
struct SspConfig {
  std::uint64_t staleness = 3;  // ssp: by how many clocks a node may run ahead of the slowest

  static void fields(auto& c, auto&& key) { key("staleness", c.staleness); }
};

// Mode local_sgd: a rank is a replica that takes local steps; its gradient of a round is the change that they made.
// Then [optimizer] is the servers' outer one, and [schedule] counts local steps.
struct LocalConfig {
  std::uint32_t steps = 0;    // local steps a round (DiLoCo's H)
  OptimizerConfig optimizer;  // the inner one; its name is the key "optimizer"
  bool keep_state = true;     // of the inner optimizer, from round to round, as DiLoCo does; else it starts afresh
};

// The round gate: operations on the whole gradient before any of it is applied (common/config/gate_rules.h).
struct GateConfig {
  double clip_norm = 0.0;           // longest global norm of a mean gradient; 0: any
  std::string loss_scale = "none";  // none, dynamic, or a power of two: the factor of trainers' losses
  // dynamic, as torch.amp.GradScaler has them, but powers of two all of them:
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::uint32_t growth_interval = 2000;  // rounds in a row that were not skipped

  static void fields(auto& c, auto&& key) {
    key("clip_norm", c.clip_norm);
    key("loss_scale", c.loss_scale);
    key("init_scale", c.init_scale);
    key("growth_factor", c.growth_factor);
    key("backoff_factor", c.backoff_factor);
    key("growth_interval", c.growth_interval);
  }
};

// Bounds of a loss scale; a dynamic one stays within them.
inline constexpr float kMinLossScale = 0x1p-120f, kMaxLossScale = 0x1p120f;

struct RecoveryConfig {
  // A node's memory for its pushes since the last snapshot (worker/reduce/redo_ring.h), MiB; none are kept if fewer
  // than 16 rounds fit. 0: none are kept, and after a loss of servers the job returns to its last snapshot.
  std::uint32_t redo_mb = 256;

  static void fields(auto& c, auto&& key) { key("redo_mb", c.redo_mb); }
};

// Membership: the nodes of a view.
struct MembershipConfig {
  OnLoss on_worker_loss = OnLoss::kWait;
  OnLoss on_server_loss = OnLoss::kWait;
  OnStateLost on_state_lost = OnStateLost::kContinue;
  // With on_worker_loss = "continue": with fewer nodes than this the job waits, too.
  std::uint32_t min_nodes = 1;
  // Time that a view waits for nodes of the previous view that are not known to be lost, and for lost servers.
  std::uint32_t rejoin_ms = 10'000;

  static void fields(auto& c, auto&& key) {
    key("on_worker_loss", c.on_worker_loss);
    key("on_server_loss", c.on_server_loss);
    key("on_state_lost", c.on_state_lost);
    key("min_nodes", c.min_nodes);
    key("rejoin_ms", c.rejoin_ms);
  }
};

struct JobConfig {
  std::string name;
  Mode mode = Mode::kSync;
  std::uint64_t chunk_bytes = 0;  // fp32 bytes per chunk; 0: default_chunk_elements()
  EncodingSpec push;              // a round's gradients: see common/math/encoding.h
  EncodingSpec pull;              // the parameters
  AllreduceConfig allreduce;
  SyncConfig sync;
  SspConfig ssp;
  OptimizerConfig optimizer;
  std::vector<kernels::OptimizerOptions> groups;  // of tensors whose TensorSpec::group is their place here + 1
  ScheduleConfig schedule;
  LocalConfig local;
  GateConfig gate;
  SnapshotConfig snapshot;
  CheckpointConfig checkpoint;
  MembershipConfig membership;
  RecoveryConfig recovery;
  TrainConfig train;
};

inline bool on_servers(const JobConfig& job) {
  return job.mode != Mode::kAllreduce;
}

// Returns whether rounds have a deadline, by which nodes send the samples done.
inline bool has_deadline(const JobConfig& job) {
  return job.mode == Mode::kSync && job.sync.deadline_ms > 0;
}

// Returns whether every node has a clock of its own: pushes are applied as they arrive.
inline bool has_clocks(const JobConfig& job) {
  return job.mode == Mode::kSsp || job.mode == Mode::kAsync;
}

inline bool has_local_steps(const JobConfig& job) {
  return job.mode == Mode::kLocalSgd;
}

// Returns whether all nodes make rounds together, on servers: after a loss such a job continues at the open round.
inline bool has_rounds(const JobConfig& job) {
  return job.mode == Mode::kSync || has_local_steps(job);
}

// Returns whether a round waits for one decision about all of its chunks.
inline bool has_gate(const JobConfig& job) {
  return job.gate.clip_norm > 0.0 || job.gate.loss_scale != "none";
}

inline bool has_dynamic_scale(const GateConfig& gate) {
  return gate.loss_scale == "dynamic";
}
// Parses a fixed loss_scale: a number above 0, or none if it is no power of two between the bounds.
std::optional<double> parse_loss_scale(const std::string& text);
// Returns the loss scale of the first round. REQUIRES: config is possible.
double initial_loss_scale(const GateConfig& config);

// Returns whether nodes may come and go.
inline bool is_elastic(const JobConfig& job) {
  return job.membership.on_worker_loss == OnLoss::kContinue;
}

// Returns a daemon's default number of lanes: a quarter of the cores, 1 to 8. Fewer lanes than cores, because every
// lane comes with a ZeroMQ I/O thread, and the kernel's network stack takes its share.
std::uint16_t default_lanes(unsigned hardware_threads);

}  // namespace tributary

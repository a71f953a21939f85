#include "common/config/config_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>

#include "common/base/layout.h"
#include "common/config/job_fields.h"
#include "common/math/encoding.h"
#include "common/system/host_port.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxSocketPath = 107;  // sockaddr_un::sun_path without its terminator
constexpr std::uint32_t kMinWindowBytes = 64u << 10;

constexpr std::uint32_t kMaxRedoMb = 1u << 20;
constexpr std::uint32_t kMaxRejoinMs = 3'600'000;
constexpr std::size_t kMaxCheckpointDir = 2048;  // with the job's name behind it, a message takes it
constexpr std::uint32_t kMaxDeadlineMs = 3'600'000;
constexpr std::string_view kDatasets[] = {"fashion-mnist"};
constexpr std::uint32_t kMinCollectiveTimeoutMs = 100;
constexpr std::string_view kLogLevels[] = {"trace", "debug", "info", "warn", "error"};

// A key that only some optimizers (or schedules) have.
struct Applicability {
  std::string_view key;
  std::vector<std::string_view> owners;
};
const std::vector<Applicability>& optimizer_keys() {
  static const std::vector<Applicability> table = [] {
    std::vector<Applicability> rows;
    const auto add = [&rows](std::string_view key, std::string_view owner) {
      auto row = std::ranges::find(rows, key, &Applicability::key);
      if (row == rows.end()) row = rows.insert(row, {key, {}});
      row->owners.push_back(owner);
    };
    for (const kernels::OptimizerKind& kind : kernels::optimizer_kinds()) {
      for (const kernels::OptionKey& key : kind.own_keys()) add(key.name, kind.name);
      if (!kind.steps) continue;
      add("lr", kind.name);
      add("weight_decay", kind.name);
    }
    return rows;
  }();
  return table;
}
const std::vector<Applicability>& schedule_keys() {
  static const std::vector<Applicability> table = {
      {"total_rounds", {"linear", "cosine"}},
      {"min_lr_ratio", {"linear", "cosine"}},
      {"step_rounds", {"step"}},
      {"step_gamma", {"step"}},
  };
  return table;
}

bool contains(std::span<const std::string_view> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Returns whether fp32 keeps a value of the steps' arithmetic finite, zero or not, and below 1 or not.
bool same_kind_in_fp32(double v) {
  const float used = static_cast<float>(v);
  return !std::isfinite(v) || (std::isfinite(used) && (used == 0.0f) == (v == 0.0) && (used < 1.0f) == (v < 1.0));
}

class Faults {
 public:
  void check(bool ok, std::string key, std::string message, std::string because_of = "") {
    if (!ok) list_.push_back({std::move(key), std::move(because_of), std::move(message)});
  }
  void one_of(std::string_view value, std::span<const std::string_view> known, std::string key) {
    check(contains(known, value), std::move(key),
          known.size() == 1 ? "the only one there is: " + std::string(known[0]) : must_be_one_of(known));
  }
  void check_in_fp32(double value, std::string key) {
    check(same_kind_in_fp32(value), std::move(key),
          "is " + std::to_string(static_cast<float>(value)) + " in fp32, which steps are computed in");
  }
  void at_least_one(std::uint64_t value, std::string key) { check(value >= 1, std::move(key), "must be at least 1"); }
  std::vector<Fault> take() { return std::move(list_); }

 private:
  std::vector<Fault> list_;
};

bool positive(double v) {
  return std::isfinite(v) && v > 0.0;
}
bool not_negative(double v) {
  return std::isfinite(v) && v >= 0.0;
}
bool fraction_below_one(double v) {
  return v >= 0.0 && v < 1.0;
}  // false for nan
bool fraction(double v) {
  return v >= 0.0 && v <= 1.0;
}

std::optional<std::uint32_t> parse_port(std::string_view text) {
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port > 65535) return std::nullopt;
  return port;
}

bool host_ok(std::string_view host) {
  return !host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           c == '_';
  });
}

// "HOST:PORT" split at the last colon.
std::pair<std::string_view, std::string_view> split_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return {text, {}};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

bool ipc_ok(std::string_view endpoint) {
  const auto path = ipc_path(endpoint);
  return path && !path->empty() && path->size() <= kMaxSocketPath;
}

bool endpoint_ok(std::string_view endpoint) {
  if (ipc_ok(endpoint)) return true;
  if (!endpoint.starts_with("tcp://")) return false;
  const auto [host, port] = split_host_port(endpoint.substr(6));
  return host_ok(host) && parse_port(port).value_or(0) != 0;
}

// most: that there may be; why: in words.
void check_coordinators(Faults& f, const std::vector<std::string>& addresses, const SecurityConfig& security,
                        const std::string& section, std::size_t most, const std::string& why) {
  const std::string key = section + ".coordinator";
  f.check(!addresses.empty() && std::ranges::all_of(addresses, endpoint_ok), key,
          "must be \"tcp://HOST:PORT\" with a port from 1 to 65535, or \"ipc://PATH\" (at most 107 characters), or a "
          "list of such addresses");
  f.check(addresses.size() <= most, key, "must have at most " + std::to_string(most) + " addresses: " + why);
  f.check(std::set(addresses.begin(), addresses.end()).size() == addresses.size(), key,
          "has an address twice: the k-th is server k's alone");
  f.check(addresses.size() < 2 || security.keys.empty() || security.coordinator_keys.size() == addresses.size(),
          "security.coordinator_key",
          "must have the " + std::to_string(addresses.size()) + " public keys of the servers at the addresses in " +
              key + ", in their order",
          key);
  f.check(security.coordinator_keys.size() < 2 || addresses.size() > 1, "security.coordinator_key",
          "must be one file, as there is one address in " + key, key);
}

void check_admin(Faults& f, const std::string& admin, const std::string& section) {
  if (admin.empty()) return;  // off
  const auto [host, port] = split_host_port(admin);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  f.check((host_ok(host) || bracketed) && parse_port(port).has_value(), section + ".admin",
          "must be \"HOST:PORT\" with a port from 0 (any free one) to 65535, or \"\" for no HTTP");
}

void check_host(Faults& f, const std::string& host, double bandwidth, const std::string& section) {
  f.check(host.size() <= kMaxJobName, section + ".host",
          "must have at most " + std::to_string(kMaxJobName) + " characters, or be \"\" to be found out");
  f.check(is_bandwidth(bandwidth), section + ".bandwidth", "must be a number from 0.001 to 1e15");
}

// Server lanes listen at `bind`: a port for each, side by side.
void check_bind(Faults& f, const ServerConfig& c) {
  const std::string forms =
      "must be \"tcp://ADDRESS:PORT\" (lane i takes PORT + i), \"tcp://ADDRESS:*\" (free ports), \"ipc://PREFIX\" or "
      "\"\" (as the coordinator)";
  if (c.bind.empty()) return;
  if (const auto prefix = ipc_path(c.bind)) {
    // A lane's number is appended to the prefix.
    f.check(!prefix->empty() && prefix->size() + 8 <= kMaxSocketPath, "server.bind",
            forms + " of at most 99 characters");
    return;
  }
  if (!c.bind.starts_with("tcp://")) return f.check(false, "server.bind", forms);
  const auto [host, port_text] = split_host_port(std::string_view(c.bind).substr(6));
  f.check(host_ok(host) || host == "*", "server.bind", forms);
  if (port_text == "*") return;
  const std::optional<std::uint32_t> port = parse_port(port_text);
  f.check(port.value_or(0) != 0, "server.bind", forms);
  if (port && c.lanes > 0) {
    f.check(*port + c.lanes - 1 <= 65535, "server.bind",
            "lane i takes PORT + i, and the last of " + std::to_string(c.lanes) + " lanes would be above 65535",
            "server.lanes");
  }
}

template <class Config>
void check_limits(Faults& f, const Config& c) {
  f.at_least_one(c.heartbeat_ms, "limits.heartbeat_ms");
  f.check(c.peer_timeout_ms / 2 >= c.heartbeat_ms, "limits.peer_timeout_ms",
          "must be at least twice heartbeat_ms (" + std::to_string(c.heartbeat_ms) +
              "), or one late beat would end every job",
          "limits.heartbeat_ms");
  f.at_least_one(c.stop_timeout_s, "limits.stop_timeout_s");
  f.one_of(c.log.level, kLogLevels, "log.level");
}

void check_security(Faults& f, const SecurityConfig& c) {
  f.check(c.network.empty() || c.network == "trusted", "security.network", "must be \"trusted\", or empty");
  f.check(c.payload == PayloadSecurity::kEncrypt || !c.keys.empty(), "security.payload",
          "must be \"encrypt\" where there are no keys (then nothing is encrypted)", "security.keys");
  f.check(c.keys.empty() || !c.insecure, "security.insecure", "must be false where there are keys", "security.keys");
}

void check_option(Faults& f, const kernels::OptionKey& option, double value, const std::string& key) {
  using Kind = kernels::OptionKey::Kind;
  switch (option.kind) {
    case Kind::kFlag:
      return;
    case Kind::kFraction:
      return f.check(fraction(value), key, "must be in [0, 1]");
    case Kind::kFractionBelowOne:
      return f.check(fraction_below_one(value), key, "must be in [0, 1)");
    case Kind::kPositive:
      return f.check(positive(value), key, "must be a finite number above 0");
    case Kind::kNotNegative:
      return f.check(not_negative(value), key, "must be 0 or a finite number above 0");
  }
}

// section: of the keys, and name_key of the optimizer's name: "optimizer" and "optimizer.name", or "local" and
// "local.optimizer".
void check_optimizer(Faults& f, const JobConfig& job, const OptimizerConfig& o, const std::string& section,
                     const std::string& name_key) {
  f.one_of(o.name, kernels::optimizer_names(), name_key);
  const kernels::OptimizerKind* kind = kernels::optimizer_kind(o.name);
  // A value that the optimizer or the job has no use for is not judged; that it is given at all is another fault.
  if (!kind || inapplicable(job, section + ".lr")) return;
  const auto key = [&section](std::string_view name) { return section + "." + std::string(name); };
  check_option(f, {"lr", 0.0, kernels::OptionKey::Kind::kPositive}, o.lr, key("lr"));
  check_option(f, {"weight_decay"}, o.weight_decay, key("weight_decay"));
  for (const kernels::OptionKey& k : kind->own_keys()) check_option(f, k, o[k.name], key(k.name));
  if (kind->faults) {
    for (const kernels::OptionFault& fault : kind->faults(o))
      f.check(false, key(fault.key), std::string(fault.message), key(fault.other));
  }
  f.check_in_fp32(o.lr, key("lr"));
  f.check_in_fp32(o.weight_decay, key("weight_decay"));
  for (const kernels::OptionKey& k : kind->own_keys()) {
    using Kind = kernels::OptionKey::Kind;
    if (k.kind != Kind::kFlag && k.kind != Kind::kFraction) f.check_in_fp32(o[k.name], key(k.name));
  }
}

// All groups are stepped by one formula, whose state has the same arrays and begins alike.
void check_group_keys(Faults& f, const JobConfig& job) {
  const OptimizerConfig& o = job.optimizer;
  for (std::size_t i = 0; i < job.groups.size(); ++i) {
    const std::string section = group_section(i);
    f.check(i + 1 < kMaxGroups, section + ".lr",
            "is of one group too many: a job has at most " + std::to_string(kMaxGroups) +
                ", the one of [optimizer] and " + std::to_string(kMaxGroups - 1) + " [[groups]]");
    check_optimizer(f, job, {job.groups[i], o.name}, section, "optimizer.name");
    const auto first = kernels::make_optimizer(o.name, o), mine = kernels::make_optimizer(o.name, job.groups[i]);
    f.check(!first || first->formula() == mine->formula(), section + ".momentum",
            "must be above 0 in all groups or in none, and nesterov the same in all: their state has the same arrays",
            "optimizer.momentum");
    if (!first) continue;
    for (std::size_t k = 0; k < o.own.size(); ++k) {
      const kernels::OptionKey& key = first->kind().keys[k];
      f.check(!key.of_state || job.groups[i].own[k] == o.own[k], section + "." + std::string(key.name),
              "must be that of all other groups", "optimizer." + std::string(key.name));
    }
  }
}

void check_local(Faults& f, const JobConfig& job) {
  if (!has_local_steps(job)) return;  // that its keys are given at all is another fault
  f.check(job.local.steps >= 1 && job.local.steps <= kMaxLocalSteps, "local.steps",
          "mode \"local_sgd\" needs the number of local steps a round: set steps, from 1 to " +
              std::to_string(kMaxLocalSteps) + " (50 to 500 are usual)",
          "job.mode");
  check_optimizer(f, job, job.local.optimizer, "local", "local.optimizer");
}

void check_schedule(Faults& f, const JobConfig& job) {
  const ScheduleConfig& s = job.schedule;
  if (s.kind == ScheduleKind::kLinear || s.kind == ScheduleKind::kCosine) {
    f.check(s.total_rounds > 0, "schedule.total_rounds",
            "the " + word(s.kind) +
                " schedule needs the round at which it ends: set total_rounds to the job's number of rounds",
            "schedule.name");
    f.check(s.total_rounds == 0 || s.total_rounds > s.warmup_rounds, "schedule.total_rounds",
            "must be more than warmup_rounds (" + std::to_string(s.warmup_rounds) + ")", "schedule.warmup_rounds");
    f.check(fraction(s.min_lr_ratio), "schedule.min_lr_ratio", "must be in [0, 1]");
  }
  if (s.kind == ScheduleKind::kStep) {
    f.check(s.step_rounds > 0, "schedule.step_rounds",
            "the step schedule needs the number of rounds between its steps: set step_rounds", "schedule.name");
    f.check(positive(s.step_gamma) && s.step_gamma <= 1.0, "schedule.step_gamma", "must be in (0, 1]");
  }
}

void check_train(Faults& f, const TrainConfig& t) {
  f.one_of(t.dataset, kDatasets, "train.dataset");
  f.check(!t.data_dir.empty(), "train.data_dir", "must name the folder of the data set's files");
  f.check(t.hidden.size() <= kMaxHiddenLayers, "train.hidden",
          "must have at most " + std::to_string(kMaxHiddenLayers) + " layers");
  f.check(std::all_of(t.hidden.begin(), t.hidden.end(), [](std::uint32_t h) { return h >= 1 && h <= kMaxHiddenSize; }),
          "train.hidden", "every layer must have from 1 to " + std::to_string(kMaxHiddenSize) + " units");
  f.at_least_one(t.epochs, "train.epochs");
  f.at_least_one(t.global_batch, "train.global_batch");
  f.at_least_one(t.accumulation, "train.accumulation");
  f.check(t.accumulation == 0 || t.global_batch % t.accumulation == 0, "train.global_batch",
          "must be a multiple of accumulation (" + std::to_string(t.accumulation) + ")", "train.accumulation");
  f.at_least_one(t.eval_every_epochs, "train.eval_every_epochs");
}

void check_membership(Faults& f, const JobConfig& c) {
  f.check(c.membership.min_nodes >= 1, "membership.min_nodes", "must be at least 1");
  f.check(c.membership.rejoin_ms >= 1 && c.membership.rejoin_ms <= kMaxRejoinMs, "membership.rejoin_ms",
          "must be from 1 to " + std::to_string(kMaxRejoinMs) + " (an hour)");
  f.check(!is_elastic(c) || on_servers(c), "membership.on_worker_loss",
          "must be \"wait\" with mode \"allreduce\": its state is with the nodes, and only node 0 keeps it",
          "job.mode");
  f.check(c.membership.on_server_loss == OnLoss::kWait || on_servers(c), "membership.on_server_loss",
          "must be \"wait\" with mode \"allreduce\", which has no servers", "job.mode");
  f.check(c.membership.on_state_lost == OnStateLost::kContinue || has_rounds(c), "membership.on_state_lost",
          "must be \"continue\" with mode \"" + word(c.mode) +
              "\": only where servers keep rounds that all nodes make together, ranks' states belong to one",
          "job.mode");
}

void check_snapshot(Faults& f, const JobConfig& c) {
  f.check(
      c.snapshot.copies <= 2, "snapshot.copies",
      "must be 1 (each part of a snapshot on its server alone), 2 (and on another server), or 0 (2 where servers are "
      "on several machines)");
}

void check_checkpoint(Faults& f, const JobConfig& c) {
  const std::string& dir = c.checkpoint.dir;
  if (dir.empty()) return;
  f.check(dir.starts_with('/') && dir.size() <= kMaxCheckpointDir && dir.find('\0') == std::string::npos,
          "checkpoint.dir",
          "must be an absolute path of at most " + std::to_string(kMaxCheckpointDir) + " bytes: servers run elsewhere");
  f.check(on_servers(c), "checkpoint.dir",
          "must be empty with mode \"allreduce\": nodes 0 and 1 keep its checkpoints, by [snapshot]", "job.mode");
}

// Checks modes with clocks. An answer goes to one node only, at a time of its own: nothing that all nodes share can be
// sent as a change. A snapshot holds a node's pushes up to a clock that the node learns too late to send its residual.
void check_clocks(Faults& f, const JobConfig& c) {
  if (!has_clocks(c)) return;
  const std::string mode = "with mode \"" + word(c.mode) + "\": ";
  f.check(!make_encoding(c.push)->keeps_residual(), "encoding.push",
          "must be fp32, bf16 or fp16 " + mode + "the others keep residuals, which its snapshots cannot hold",
          "job.mode");
  f.check(!make_encoding(c.pull)->is_delta(), "encoding.pull",
          "must be fp32, bf16 or fp16 " + mode + "changes need an estimate that all nodes share, and nodes differ",
          "job.mode");
}

void check_sync(Faults& f, const SyncConfig& sync) {
  f.check(sync.deadline_ms <= kMaxDeadlineMs, "sync.deadline_ms",
          "must be at most " + std::to_string(kMaxDeadlineMs) + " (an hour), or 0 for rounds of whole batches");
}

// Checks that one decision can cover a whole round: the same contributions in all chunks, all of them on servers, and
// no state left on nodes that a skipped round has spoilt.
void check_gate(Faults& f, const JobConfig& c) {
  const GateConfig& g = c.gate;
  f.check(not_negative(g.clip_norm), "gate.clip_norm", "must be 0 (no clipping) or a finite number above 0");
  f.check_in_fp32(g.clip_norm, "gate.clip_norm");
  f.check(g.loss_scale == "none" || has_dynamic_scale(g) || parse_loss_scale(g.loss_scale).has_value(),
          "gate.loss_scale", "must be \"none\", \"dynamic\" or a power of two, as \"1024\"");
  const auto power = [](double v, double least, double most) {
    int exponent = 0;
    return positive(v) && v >= least && v <= most && std::frexp(v, &exponent) == 0.5;
  };
  const double max_scale = kMaxLossScale;
  f.check(power(g.init_scale, kMinLossScale, max_scale), "gate.init_scale", "must be a power of two (65536 is usual)");
  f.check(power(g.growth_factor, 1.0, max_scale), "gate.growth_factor",
          "must be a power of two from 1 on (2 is usual)");
  f.check(power(g.backoff_factor, kMinLossScale, 1.0), "gate.backoff_factor",
          "must be a power of two up to 1 (0.5 is usual)");
  f.at_least_one(g.growth_interval, "gate.growth_interval");
  if (!has_gate(c)) return;
  const char* key = g.clip_norm > 0.0 ? "gate.clip_norm" : "gate.loss_scale";
  f.check(c.mode == Mode::kSync, key,
          "needs mode \"sync\": it waits for one decision about a whole round, and with mode \"" + word(c.mode) +
              "\" there is none to wait for; clip in the trainer instead",
          "job.mode");
  f.check(
      !has_dynamic_scale(g) || !make_encoding(c.push)->keeps_residual(), "encoding.push",
      "must be fp32, bf16 or fp16 with a dynamic loss scale: the others keep residuals, whose scale would be that of "
      "rounds before",
      "gate.loss_scale");
}

}  // namespace

OptimizerConfig default_outer_optimizer(Mode mode, std::string_view name) {
  OptimizerConfig o = default_optimizer(name);
  if (mode == Mode::kLocalSgd && name == "sgd") o.lr = 1.0;
  return o;
}

std::optional<Fault> inapplicable(const JobConfig& config, const std::string& key) {
  const std::string section = key.substr(0, key.find('.'));
  const auto of_mode = [&](const std::string& why) {
    return Fault{key, "job.mode", "mode \"" + word(config.mode) + "\" " + why};
  };
  if (section == "allreduce" && on_servers(config)) {
    return of_mode("has no all-reduce: remove the key or set job.mode to \"allreduce\"");
  }
  if (section == "ssp" && !has_clocks(config)) {
    return of_mode("knows no staleness: remove the key or set job.mode to \"ssp\" (or \"async\", without a bound)");
  }
  if (section == "sync" && config.mode != Mode::kSync) {
    return of_mode("has no late nodes to go on without: remove the key or set job.mode to \"sync\"");
  }
  if (key == "ssp.staleness" && config.mode == Mode::kAsync) {
    return of_mode("has no bound on staleness: remove the key or set job.mode to \"ssp\"");
  }
  if (section == "local" && !has_local_steps(config)) {
    return of_mode("has no local steps: remove the key or set job.mode to \"local_sgd\"");
  }
  const bool of_scale = key == "gate.init_scale" || key == "gate.growth_factor" || key == "gate.backoff_factor" ||
                        key == "gate.growth_interval";
  if (of_scale && !has_dynamic_scale(config.gate)) {
    return Fault{key, "gate.loss_scale",
                 "only a dynamic loss scale has it: remove the key or set gate.loss_scale to \"dynamic\""};
  }
  // The key that names the optimizer or schedule which the other keys of its section belong to.
  const bool of_group = section.starts_with("groups[");
  const std::string name_key = section == "local" ? "local.optimizer" : (of_group ? "optimizer" : section) + ".name";
  const auto look_up = [&](const std::vector<Applicability>& table, std::string_view chosen) -> std::optional<Fault> {
    for (const Applicability& a : table) {
      if (key.substr(section.size() + 1) != a.key || contains(a.owners, chosen)) continue;
      return Fault{key, name_key,
                   std::string(chosen) + " has no " + std::string(a.key) + " (" + join(a.owners, " and ") +
                       (a.owners.size() == 1 ? " has" : " have") + "): remove the key or change " + name_key};
    }
    return std::nullopt;
  };
  if (section == "schedule") return look_up(schedule_keys(), word(config.schedule.kind));
  if (section != "optimizer" && section != "local" && !of_group) return std::nullopt;
  const std::string& name = section == "local" ? config.local.optimizer.name : config.optimizer.name;
  if (kernels::optimizer_kind(name) == nullptr) return std::nullopt;  // a fault of its own
  return look_up(optimizer_keys(), name);
}

std::vector<Fault> faults_of(const JobConfig& c) {
  Faults f;
  const bool name_ok = std::all_of(c.name.begin(), c.name.end(), [](char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || ch == '.' || ch == '_' ||
           ch == '-';
  });
  f.check(!c.name.empty(), "job.name", "every job needs a name; a run with the same name resumes the job");
  f.check(name_ok, "job.name", "must consist of letters, digits, '.', '_' and '-'");
  f.check(c.name.size() <= kMaxJobName, "job.name",
          "must have at most " + std::to_string(kMaxJobName) + " characters, has " + std::to_string(c.name.size()));
  f.check(c.chunk_bytes == 0 || (c.chunk_bytes % (kTensorAlign * sizeof(float)) == 0 &&
                                 c.chunk_bytes >= kMinChunkBytes && c.chunk_bytes <= kMaxChunkBytes),
          "job.chunk_bytes",
          "must be a multiple of " + std::to_string(kTensorAlign * sizeof(float)) + " from " +
              std::to_string(kMinChunkBytes) + " to " + std::to_string(kMaxChunkBytes) +
              ", or 0 to let the size follow from the model");
  f.check(usable_for_push(c.push), "encoding.push", "must be one of " + push_encodings());
  f.check(usable_for_pull(c.pull), "encoding.pull", "must be one of " + pull_encodings());
  if (!on_servers(c)) {
    const std::string why =
        "must be fp32 with mode \"allreduce\": a ring adds values on the way, encoded ones cannot be";
    f.check(c.push.id == EncodingId::kFp32, "encoding.push", why, "job.mode");
    f.check(c.pull.id == EncodingId::kFp32, "encoding.pull", why, "job.mode");
  }
  check_clocks(f, c);
  check_sync(f, c.sync);
  check_gate(f, c);
  check_optimizer(f, c, c.optimizer, "optimizer", "optimizer.name");
  check_group_keys(f, c);
  f.check(c.optimizer.name != "mean" || c.mode == Mode::kSync || !on_servers(c), "optimizer.name",
          "needs mode \"sync\" or \"allreduce\": with mode \"" + word(c.mode) + "\" nobody has a mean gradient",
          "job.mode");
  f.check(c.local.optimizer.name != "mean", "local.optimizer", "takes no step: name one that does, as adamw");
  check_local(f, c);
  check_schedule(f, c);
  f.check(c.recovery.redo_mb <= kMaxRedoMb, "recovery.redo_mb",
          "must be at most " + std::to_string(kMaxRedoMb) + " (1 TiB), or 0 to keep nothing");
  check_membership(f, c);
  check_snapshot(f, c);
  check_checkpoint(f, c);
  check_train(f, c.train);
  return f.take();
}

std::vector<Fault> faults_of(const ServerConfig& c) {
  Faults f;
  f.check(c.servers >= 1 && c.servers <= kMaxServers, "server.servers",
          "must be from 1 to " + std::to_string(kMaxServers));
  f.check(c.index < c.servers || c.servers == 0, "server.index",
          "must be below servers (" + std::to_string(c.servers) + "): the servers are numbered from 0",
          "server.servers");
  check_coordinators(f, c.coordinators, c.security, "server", std::clamp<std::size_t>(c.servers, 1, kMaxCoordinators),
                     "the k-th is server k's, and there are " + std::to_string(c.servers) + " servers");
  f.check(c.coordinators.size() < 2 || !may_coordinate(c) || !c.store_path.empty(), "store.path",
          "must be set on servers that may have the coordinator, where there are several", "server.coordinator");
  check_bind(f, c);
  f.check(c.advertise.empty() || host_ok(c.advertise), "server.advertise",
          "must be a host name or IPv4 address alone, without scheme and port");
  f.check(c.lanes <= kMaxLanes, "server.lanes",
          "must be at most " + std::to_string(kMaxLanes) + " (0: from the machine)");
  check_admin(f, c.admin, "server");
  check_host(f, c.host, c.bandwidth, "server");
  f.at_least_one(c.store_io_mb_per_s, "store.io_mb_per_s");
  check_limits(f, c);
  check_security(f, c.security);
  return f.take();
}

std::vector<Fault> faults_of(const WorkerConfig& c) {
  Faults f;
  check_coordinators(f, c.coordinators, c.security, "worker", c.serve_coordinator ? 1 : kMaxCoordinators,
                     c.serve_coordinator ? "it is this worker's own" : "no more servers may have the coordinator");
  f.check(c.name.size() <= kMaxJobName, "worker.name",
          "must have at most " + std::to_string(kMaxJobName) + " characters");
  f.check(!c.socket.empty() && c.socket.size() <= kMaxSocketPath, "worker.socket",
          "must be a path of 1 to " + std::to_string(kMaxSocketPath) + " characters");
  f.check(c.lanes <= kMaxLanes, "worker.lanes",
          "must be at most " + std::to_string(kMaxLanes) + " (0: from the machine)");
  check_host(f, c.host, c.bandwidth, "worker");
  f.check(c.address.empty() || host_ok(c.address), "worker.address",
          "must be a host name or IPv4 address alone, without scheme and port");
  f.check(!c.serve_coordinator || !c.address.empty() || c.coordinators.empty() ||
              !c.coordinators.front().starts_with("tcp://0.0.0.0:"),
          "worker.address",
          "must be this machine's address, because coordinator names none to which one could be found out",
          "worker.coordinator");
  f.check(c.collective_timeout_ms >= kMinCollectiveTimeoutMs, "device.collective_timeout_ms",
          "must be at least " + std::to_string(kMinCollectiveTimeoutMs) + " milliseconds");
  check_admin(f, c.admin, "worker");
  f.check(c.window_bytes == 0 || c.window_bytes >= kMinWindowBytes, "limits.window_bytes",
          "must be at least " + std::to_string(kMinWindowBytes) + ", or 0 to let the window find the link's capacity");
  check_limits(f, c);
  check_security(f, c.security);
  return f.take();
}

}  // namespace tributary

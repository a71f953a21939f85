// A CoordinatorCore with its peers (servers and workers), its messages to each, and its registry.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/config/job_json.h"
#include "server/coordinator/coordinator_core.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/parts_in_memory.h"

namespace tributary::testing {

inline constexpr std::uint64_t kTimeoutMs = 10'000;

inline PeerId server_peer(std::uint16_t index) {
  return PeerId(1000 + index);
}
inline PeerId worker_peer(std::uint32_t worker) {
  return PeerId(2000 + worker);
}
inline std::uint64_t server_incarnation(std::uint16_t index) {
  return 10 + index;
}
inline std::uint64_t worker_incarnation(std::uint32_t worker) {
  return 50 + worker;
}

inline JobConfig config_of(const std::string& name) {
  JobConfig config;
  config.name = name;
  config.snapshot.every_s = 0;  // tests that want snapshots say so
  return config;
}

struct JoinOptions {
  std::string job = "mnist";
  std::uint32_t node = 0, nodes = 1, ranks = 2;
  std::optional<std::uint32_t> world_size;  // nodes * ranks
  std::vector<TensorSpec> tensors = {{"w", {100'000}}};
  std::uint64_t checkpoint = 0;  // all-reduce: round
  std::string checkpoint_flaw = {};
  JobId redo_job = {};  // whose pushes the node has, from first to last
  std::uint64_t redo_first = 1, redo_last = 0;
  std::uint64_t residual_first = 1, residual_last = 0;
  std::uint32_t redo_capacity = 0;
  std::vector<std::uint32_t> redo_nodes = {};  // of the views they were pushed in; empty: 0 to nodes - 1
  JobConfig config = config_of("");            // its name is `job`
  ComputeKinds computes_with = {};
  bool on_devices = false;
  std::vector<std::uint32_t> model_ranks = {};
};

// Returns the options of a node that keeps the pushes of 16 rounds.
inline JoinOptions keeping() {
  JoinOptions options;
  options.redo_capacity = 16;
  return options;
}

class Cluster : public CoordinatorOutput {
 public:
  std::uint64_t wall_ms() const override { return clock_ms; }
  explicit Cluster(std::uint16_t servers = 2, std::vector<JobRecord> known = {}, std::uint64_t incarnation = 7,
                   PartsInMemory stored = {})
      : Cluster(CoordinatorOptions{servers, incarnation, kTimeoutMs, incarnation * 1000}, std::move(known),
                std::move(stored)) {}
  Cluster(const CoordinatorOptions& options, std::vector<JobRecord> known, PartsInMemory stored = {})
      : servers_(options.servers), parts(std::move(stored)), core(options, std::move(known), *this) {}

  // ---- What peers say ----
  void say(PeerId from, const ControlMessage& message) {
    core.on_message(from, message, now);
    say_what_is_kept();
    write();
  }
  // The disk does what is asked of it, unless a test holds it up.
  void write() {
    while (!disk_stands && !orders.empty()) write_one();
  }
  void disk_goes_on() {
    disk_stands = false;
    write();
  }
  // The oldest of what it was asked, also while it is held up.
  void write_one() {
    REQUIRE_FALSE(orders.empty());
    const auto order = std::move(orders.front());
    orders.erase(orders.begin());
    order();
    say_what_is_kept();
  }
  void tick(std::uint64_t at_ms) {
    core.tick(at_ms);
    write();
  }
  Result<std::uint64_t> remove_job(const std::string& name) {
    Result<std::uint64_t> removed = core.remove_job(name);
    write();
    return removed;
  }
  // Servers answer the end of a view that no order ended with their entries of `keeps`; nodes report of a clean end that
  // they have all answers.
  void say_what_is_kept() {
    while (have_answers && !last_rounds.empty()) {
      const auto [peer, stop] = last_rounds.front();
      last_rounds.erase(last_rounds.begin());
      const NodeRank node(static_cast<std::uint32_t>(peer.value - worker_peer(0).value));
      core.on_message(peer, LeaveJob{stop.job, stop.view, node, LeaveKind::kStopped, stop.round, {}, {}}, now);
    }
    while (answers_kept && !ended_views.empty()) {
      const auto [peer, stop] = ended_views.front();
      ended_views.erase(ended_views.begin());
      const auto kept = keeps.find(peer.value);
      const bool any = kept != keeps.end();
      core.on_message(peer,
                      ShardKept{stop.job, stop.view, any, any ? kept->second.first : Version(),
                                any ? kept->second.second : Version()},
                      now);
    }
  }
  void keep(std::uint16_t index, std::uint64_t min, std::uint64_t max) {
    keeps[server_peer(index).value] = {Version(min), Version(max)};
  }
  // Lowest and highest version that servers 0 and 1 keep.
  struct Kept {
    std::uint64_t min, max;
  };
  void keep(Kept first, Kept second) {
    keep(0, first.min, first.max);
    keep(1, second.min, second.max);
  }
  ServerHello hello_of(std::uint16_t index) const {
    ServerHello hello;
    hello.shard = ShardIndex(index);
    hello.servers = servers_;
    hello.incarnation = server_incarnation(index);
    hello.lane_endpoints = {"tcp://s" + std::to_string(index) + ":1", "tcp://s" + std::to_string(index) + ":2"};
    hello.lane_locals = {"local-" + std::to_string(index) + "-1", ""};
    hello.store = true;
    return hello;
  }
  void server(std::uint16_t index, std::vector<StoredJob> stored = {}) {
    ServerHello hello = hello_of(index);
    hello.stored = std::move(stored);
    say(server_peer(index), hello);
  }
  void worker(std::uint32_t w) { say(worker_peer(w), WorkerHello{"host" + std::to_string(w), worker_incarnation(w)}); }
  void everybody(std::uint32_t workers) {
    for (std::uint16_t i = 0; i < servers_; ++i) server(i);
    for (std::uint32_t w = 0; w < workers; ++w) worker(w);
  }
  JoinJob join_of(JoinOptions options) const {
    options.config.name = options.job;
    JoinJob join;
    join.job_json = to_canonical_json(options.config);
    join.tensors = options.tensors;
    join.node = NodeRank(options.node);
    join.nodes = options.nodes;
    join.local_world_size = options.ranks;
    join.checkpoint_round = Round(options.checkpoint);
    join.checkpoint_flaw = options.checkpoint_flaw;
    join.redo_job = options.redo_job;
    join.redo_first = Round(options.redo_first);
    join.redo_last = Round(options.redo_last);
    join.residual_first = Round(options.residual_first);
    join.residual_last = Round(options.residual_last);
    join.redo_capacity = options.redo_capacity;
    join.computes_with = options.computes_with;
    join.on_devices = options.on_devices;
    join.model_ranks = options.model_ranks;
    std::vector<std::uint32_t> nodes = options.redo_nodes;
    for (std::uint32_t node = 0; node < std::min(options.nodes, 2048u) && options.redo_nodes.empty(); ++node)
      nodes.push_back(node);
    join.redo_members = members_hash(nodes);
    join.world_size = options.world_size.value_or(options.nodes * options.ranks);
    return join;
  }
  void join(std::uint32_t w, const JoinOptions& options) { say(worker_peer(w), join_of(options)); }
  void ready(std::uint16_t index) { say(server_peer(index), ShardReady{open().job, open().view, true, {}, {}}); }
  void all_ready() {
    for (std::uint16_t i = 0; i < servers_; ++i) ready(i);
  }
  // Starts a job of `nodes` nodes, worker w as node w, until it runs; forgets the messages on the way.
  void run(std::uint32_t nodes, JoinOptions options = {}) {
    options.nodes = nodes;
    for (std::uint32_t w = 0; w < nodes; ++w) {
      options.node = w;
      join(w, options);
    }
    all_ready();
    sent.clear();
  }
  void leave(std::uint32_t w, LeaveKind kind, std::uint64_t round, const std::string& message = {}) {
    say(worker_peer(w), LeaveJob{open().job, open().view, NodeRank(w), kind, Round(round), message, {}});
  }
  // Node w stops, and servers write the state of the round.
  void stop_at(std::uint32_t w, std::uint64_t round) {
    leave(w, LeaveKind::kStopped, round);
    all_done(round);
  }
  void done(std::uint16_t index, std::uint64_t round, bool ok = true) {
    say(server_peer(index),
        SnapshotDone{open().job, open().view, Round(round), ok, 1, ok ? "" : "disk full", ErrorCode::kStopped});
  }
  void all_done(std::uint64_t round) {
    for (std::uint16_t i = 0; i < servers_; ++i) done(i, round);
  }
  void beat_server(std::uint16_t index, std::uint64_t min_version = 0, std::uint64_t max_version = 0,
                   bool prepared = false, bool writing = false) {
    Heartbeat beat{server_incarnation(index), {}};
    if (last_open)
      beat.progress = {{open().job, open().view, Version(min_version), Version(max_version), prepared, writing}};
    say(server_peer(index), beat);
  }
  void beat_worker(std::uint32_t w) { say(worker_peer(w), Heartbeat{worker_incarnation(w), {}}); }
  // Lets time pass in steps of a heartbeat; `quiet` peers send nothing.
  void pass(std::uint64_t ms, std::uint32_t workers, std::vector<PeerId> quiet = {}, std::uint64_t version = 0) {
    for (std::uint64_t passed = 0; passed < ms; passed += 1000) {
      now += 1000;
      for (std::uint16_t i = 0; i < servers_; ++i) {
        if (std::ranges::find(quiet, server_peer(i)) == quiet.end()) beat_server(i, version, version);
      }
      for (std::uint32_t w = 0; w < workers; ++w) {
        if (std::ranges::find(quiet, worker_peer(w)) == quiet.end()) beat_worker(w);
      }
      tick(now);
      say_what_is_kept();
    }
  }

  // ---- What the coordinator says ----
  template <class M>
  std::vector<M> to(PeerId peer) const {
    std::vector<M> found;
    for (const auto& [receiver, message] : sent) {
      if (receiver != peer) continue;
      if (const M* m = std::get_if<M>(&message)) found.push_back(*m);
    }
    return found;
  }
  // Returns the only message of its kind; nothing if there is none or more than one.
  template <class M>
  std::optional<M> only(PeerId peer) const {
    const std::vector<M> found = to<M>(peer);
    return found.size() == 1 ? std::optional<M>(found[0]) : std::nullopt;
  }
  template <class M>
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(sent, [](const auto& s) { return std::holds_alternative<M>(s.second); }));
  }
  const OpenJob& open() const { return *last_open; }

  CoordinatorCore::JobStatus job(const std::string& name = "mnist") const {
    for (CoordinatorCore::JobStatus& status : core.jobs()) {
      if (status.name == name) return status;
    }
    return {};
  }
  const JobRecord& record(const std::string& name = "mnist") const { return *core.record(name); }
  std::string phase() const { return job().phase; }

  // ---- CoordinatorOutput ----
  void send(PeerId peer, const ControlMessage& message) override {
    if (const auto* m = std::get_if<OpenJob>(&message)) last_open = *m;
    const auto* stop = std::get_if<StopJob>(&message);
    if (stop && stop->kind == StopKind::kRestart && peer.value < worker_peer(0).value)
      ended_views.emplace_back(peer, *stop);
    if (stop && stop->kind != StopKind::kRestart && peer.value >= worker_peer(0).value)
      last_rounds.emplace_back(peer, *stop);
    sent.emplace_back(peer, message);
  }
  void save(const JobRecord& record) override {
    orders.push_back([this, record] {
      if (!save_fails) registry[record.job.value] = record;
      core.saved(record.job, disk(), now);
    });
  }
  void adopt(std::vector<JobRecord> records) override { adopted = std::move(records); }
  void remove(JobId job) override {
    orders.push_back([this, job] {
      if (!save_fails) registry.erase(job.value);
      core.removed(job, disk(), now);
    });
  }
  void on_disk(Work work, Done done) override {
    orders.push_back([this, work = std::move(work), done = std::move(done)] { done(work(), now); });
  }
  Status disk() const { return save_fails ? fail(ErrorCode::kStore, "the disk is full") : Status(); }
  LargePartStore* large_parts() override { return servers_ == 0 ? nullptr : &parts; }
  void log(const std::string& line, LogLevel level) override {
    logged.push_back(line);
    if (level == LogLevel::kError) errors.push_back(line);
    if (level == LogLevel::kWarning) warnings.push_back(line);
  }
  std::vector<JobRecord> records() const {
    std::vector<JobRecord> all;
    for (const auto& [id, record] : registry) all.push_back(record);
    return all;
  }

 private:
  const std::uint16_t servers_;

 public:
  std::uint64_t now = 1'000'000;
  std::uint64_t clock_ms = 0;  // the coordinator's time of day
  std::vector<std::pair<PeerId, ControlMessage>> sent;
  std::optional<OpenJob> last_open;
  std::map<std::uint64_t, JobRecord> registry;
  std::optional<std::vector<JobRecord>> adopted;
  PartsInMemory parts;
  std::vector<std::string> logged;  // all of them
  std::vector<std::string> warnings, errors;
  bool save_fails = false;
  bool disk_stands = false;  // nothing is written until it goes on, and write()
  std::vector<std::function<void()>> orders;
  std::map<std::uint64_t, std::pair<Version, Version>> keeps;  // by peer: lowest and highest version
  std::vector<std::pair<PeerId, StopJob>> ended_views;
  bool answers_kept = true;
  std::vector<std::pair<PeerId, StopJob>> last_rounds;  // that nodes were told
  bool have_answers = true;                             // nodes have all of the round that their view ends with
  CoordinatorCore core;
};

// Returns the one error that `peer` got, which must have `code` and every word.
inline void check_error(const Cluster& cluster, PeerId peer, ErrorCode code, const std::vector<std::string>& words) {
  const auto error = required(cluster.only<ControlError>(peer));
  CHECK(to_string(error.code) == to_string(code));
  for (const std::string& word : words) {
    CHECK_MESSAGE(contains(error.message, word), error.message << " lacks: " << word);
  }
}

inline JobWelcome welcome_of(const Cluster& cluster, std::uint32_t w) {
  return required(cluster.only<JobWelcome>(worker_peer(w)));
}

inline constexpr std::uint64_t kMinute = 60'000;

inline JoinOptions with_snapshots(std::uint32_t every_s, std::uint64_t every_rounds) {
  JoinOptions options;
  options.config.snapshot.every_s = every_s;
  options.config.snapshot.every_rounds = every_rounds;
  return options;
}

// A job that was stopped at `round`, as its record and the servers' stores have it.
struct Stopped {
  std::vector<JobRecord> records;
  std::vector<StoredJob> stored;
};
inline Stopped stopped_at(std::uint64_t round, std::uint16_t servers = 2) {
  Cluster cluster(servers);
  cluster.everybody(1);
  cluster.run(1);
  cluster.leave(0, LeaveKind::kStopped, round);
  cluster.all_done(round);
  return {cluster.records(), {StoredJob{cluster.open().job, "mnist", 0, {Round(round)}}}};
}

// Connects all peers after a restart, every server with its store's snapshots.
inline void restarted(Cluster& cluster, const std::vector<StoredJob>& stored, std::uint32_t workers = 1) {
  cluster.everybody(workers);
  for (std::uint16_t i = 0; i < 2; ++i) cluster.server(i, stored);
  cluster.sent.clear();
}

struct ClusterSize {
  std::uint32_t workers = 1;
  std::uint16_t servers = 2;
};

// A cluster whose servers and workers are all connected.
struct FullCluster : Cluster {
  explicit FullCluster(const ClusterSize& size) : Cluster(size.servers) { everybody(size.workers); }
};

// A cluster whose job has begun on all of its workers.
struct TrainingCluster : FullCluster {
  explicit TrainingCluster(const ClusterSize& size, JoinOptions options = {}) : FullCluster(size) {
    run(size.workers, std::move(options));
  }
  explicit TrainingCluster(std::uint32_t nodes, std::uint16_t servers = 2)
      : TrainingCluster(ClusterSize{.workers = nodes, .servers = servers}) {}
};

}  // namespace tributary::testing

// Everything that the jobs of a coordinator share. CoordinatorCore owns it.
#pragma once

#include <cstdint>
#include <set>

#include "server/coordinator/cluster/coordinator_output.h"
#include "server/coordinator/cluster/peers.h"
#include "server/coordinator/cluster/refusal_log.h"
#include "server/coordinator/cluster/registry_copies.h"
#include "server/coordinator/orders/checkpoints.h"
#include "server/coordinator/orders/large_parts.h"

namespace tributary {

// Knowledge of servers that a coordinator begins with: from the one before it in the same process.
struct KnownServers {
  std::map<std::uint16_t, std::uint64_t> heard_ms;  // last
  std::uint64_t since_ms = 0;                       // none of the others was heard after it; 0: it begins itself
  std::set<std::uint16_t> given_up;                 // as CoordinatorContext::given_up
};

struct CoordinatorOptions {
  std::uint16_t servers = 1;  // 0: a cluster for all-reduce jobs only
  std::uint64_t incarnation = 0;
  std::uint64_t peer_timeout_ms = 10000;
  std::uint64_t job_id_seed = 0;  // random per process: makes the ids of new jobs
  // Shards with as much state, or more, are asked to get memory before a snapshot is named. Less than that is there
  // before the round is.
  std::uint64_t prepare_from_bytes = 16u << 20;
  ShardIndex home = {};  // the server whose process has the coordinator
  // Another server had the coordinator since this one's registry was written: its records are copies like any other's.
  bool moved = false;
  Term term = {};  // docs/failover.md; 0: only one server may have the coordinator
  KnownServers known = {};
};

struct CoordinatorContext {
  CoordinatorContext(const CoordinatorOptions& given, CoordinatorOutput& out, CheckpointJobs& jobs)
      : options(given),
        output(out),
        peers(given.servers, given.peer_timeout_ms, given.home),
        copies(given.servers > 1, given.moved),
        checkpoints(peers, out, jobs, given.term.value + (given.incarnation >> 32)),
        parts(out, peers, [&jobs](JobId job, std::uint64_t now_ms) { jobs.part_is_there(job, now_ms); }) {}
  CoordinatorContext(const CoordinatorContext&) = delete;
  CoordinatorContext& operator=(const CoordinatorContext&) = delete;

  void send_servers(const ControlMessage& message) {
    for (const auto& [index, server] : peers.servers()) {
      if (server.alive) output.send(server.peer, message);
    }
  }
  void send_worker(std::uint64_t incarnation, const ControlMessage& message) {
    if (const Peers::Worker* worker = peers.worker(incarnation)) output.send(worker->peer, message);
  }
  // Whether it has a store. The coordinator's own server's has the registry itself.
  bool keeps_copies(const Peers::Server& server) const {
    return server.alive && server.hello.store && server.hello.shard != peers.home();
  }
  // Most servers have this job's record, or it is too large for that.
  bool record_is_copied(const JobRecord& record) const;
  // Sends a saved record to a server that keeps copies, before what comes after it; and to all that do.
  void copy_to(const Peers::Server& server, const JobRecord& record, std::uint64_t now_ms);
  void copy(const JobRecord& record, std::uint64_t now_ms);
  // The job's record goes, then what belongs to it (CoordinatorCore::removed()).
  void remove(JobId job) {
    if (removing.insert(job).second) output.remove(job);
  }
  // join: JoinJob::number.
  void refuse(PeerId to, const Error& error, const std::string& job = {}, std::uint64_t join = 0) {
    if (refusals.is_news(to, error.code, job)) output.log("refused a peer: " + error.message, LogLevel::kWarning);
    output.send(to, ControlError{error.code, error.message, job, join});
  }

  const CoordinatorOptions options;
  CoordinatorOutput& output;
  Peers peers;
  RegistryCopies copies;
  Checkpoints checkpoints;
  LargeParts parts;
  RefusalLog refusals;
  std::set<JobId> removing;  // whose records are being removed
  bool draining = false;
  std::uint64_t began_ms = options.known.since_ms;            // else the first tick
  std::set<std::uint16_t> given_up = options.known.given_up;  // an order went on without, until they say hello
  // When this server was met, or, if it is not there, was last heard; or the time since which it was not.
  std::uint64_t since_ms(std::uint16_t server) const;
  KnownServers known_servers() const;  // for the next one
  // No other coordinator can decide otherwise: most servers are there, or nobody else may have the coordinator.
  bool may_decide() const { return peers.majority(given_up.size()) || options.term == Term(); }
};

}  // namespace tributary

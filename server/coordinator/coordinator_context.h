// What the jobs of a coordinator share. CoordinatorCore owns it.
#pragma once

#include <cstdint>

#include "server/coordinator/checkpoints.h"
#include "server/coordinator/coordinator_output.h"
#include "server/coordinator/large_parts.h"
#include "server/coordinator/peers.h"
#include "server/coordinator/refusal_log.h"

namespace tributary {

struct CoordinatorOptions {
  std::uint16_t servers = 1;  // 0: a cluster for all-reduce jobs only
  std::uint64_t incarnation = 0;
  std::uint64_t peer_timeout_ms = 10000;
  std::uint64_t job_id_seed = 0;  // random per process: makes the ids of new jobs
  // Shards with as much state, or more, are asked to get memory before a snapshot is named. Less than that is there
  // before the round is.
  std::uint64_t prepare_from_bytes = 16u << 20;
};

struct CoordinatorContext {
  CoordinatorContext(const CoordinatorOptions& given, CoordinatorOutput& out, CheckpointJobs& jobs)
      : options(given),
        output(out),
        peers(given.servers, given.peer_timeout_ms),
        checkpoints(peers, out, jobs),
        parts(out, peers) {}
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
  // The job's record, and what belongs to it.
  Status remove(JobId job) {
    Status removed = output.remove(job);
    if (removed) parts.keep_only(job, {});
    return removed;
  }
  // join: JoinJob::number.
  void refuse(PeerId to, const Error& error, const std::string& job = {}, std::uint64_t join = 0) {
    if (refusals.is_news(to, error.code, job)) output.log("refused a peer: " + error.message, LogLevel::kWarning);
    output.send(to, ControlError{error.code, error.message, job, join});
  }

  const CoordinatorOptions options;
  CoordinatorOutput& output;
  Peers peers;
  Checkpoints checkpoints;
  LargeParts parts;
  RefusalLog refusals;
  bool draining = false;
};

}  // namespace tributary

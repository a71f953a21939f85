// The life of a job in the coordinator: gathering, opening, running with snapshots, stopping.
#include <algorithm>
#include <cmath>

#include "common/assert.h"
#include "common/job_json.h"
#include "server/coordinator_core.h"

namespace tributary {
namespace {

// A graceful stop that takes longer (a shard cannot write, a node never leaves) is given up: the last committed snapshot stands.
constexpr std::uint64_t kStopPatienceMs = 60'000;
// How long after a refused or missed snapshot the next one is tried.
constexpr std::uint64_t kSnapshotRetryMs = 1'000;
// A snapshot round is named this far ahead of the fastest shard, so that the message is there before the round is.
constexpr double kSnapshotLeadMs = 300.0;
constexpr std::uint64_t kMaxSnapshotLeadFactor = 32;
constexpr std::uint64_t kNever = ~0ull;

std::string in_words(const std::string& name) { return "job '" + name + "'"; }

}  // namespace

void CoordinatorCore::set_phase(Job& job, Phase phase, std::uint64_t now_ms) {
  job.phase = phase;
  job.phase_since_ms = now_ms;
}

CoordinatorCore::Job* CoordinatorCore::job_in_view(JobId id, ViewId view) {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& entry) {
    const Job& job = entry.second;
    return job.record.job == id && job.record.view == view && job.phase != Phase::kIdle && job.phase != Phase::kGathering;
  });
  return it == jobs_.end() ? nullptr : &it->second;
}

void CoordinatorCore::send_members(const Job& job, const ControlMessage& message) {
  for (const auto& [node, member] : job.members) {
    const auto worker = workers_.find(member.worker);
    if (worker != workers_.end()) output_.send(worker->second.peer, message);
  }
}

void CoordinatorCore::send_servers(const ControlMessage& message) {
  for (const auto& [index, server] : servers_) {
    if (server.alive) output_.send(server.peer, message);
  }
}

// Shards that own chunks of the job: a model smaller than the cluster leaves some without.
std::set<std::uint16_t> CoordinatorCore::shards_of(const Job& job) const {
  std::set<std::uint16_t> shards;
  for (const ChunkOwner& owner : job.record.owners) shards.insert(owner.shard.value);
  return shards;
}

void CoordinatorCore::on(PeerId from, const JoinJob& m, std::uint64_t now_ms) {
  const Worker* worker = worker_at(from);
  if (!worker) return refuse(from, ErrorCode::kUnavailable, "this worker has not said hello yet; attach again");
  Result<JobConfig> config = job_from_json(m.job_json);
  if (!config) return refuse(from, config.error().code, config.error().message);
  if (draining_) return refuse(from, ErrorCode::kStopped, "the cluster is being stopped; attach again when it is back");
  const auto found = jobs_.find(config->name);
  const bool created = found == jobs_.end();
  Job& job = created ? jobs_[config->name] : found->second;
  if (created) job.config = *config;
  const Status admitted = admit(job, m, worker->hello.incarnation, now_ms);
  if (!admitted) {
    if (created) jobs_.erase(config->name);
    return refuse(from, admitted.error().code, admitted.error().message);
  }
  open_if_complete(job, now_ms);
}

Status CoordinatorCore::admit(Job& job, const JoinJob& m, std::uint64_t worker, std::uint64_t now_ms) {
  const std::string name = in_words(job.config.name);
  if (m.nodes == 0 || m.node.value >= m.nodes || std::uint64_t{m.nodes} * m.local_world_size != m.world_size) {
    return fail(ErrorCode::kTopology, "node " + std::to_string(m.node.value) + " of " + std::to_string(m.nodes) + " with " +
                                          std::to_string(m.local_world_size) + " ranks cannot be part of world_size " +
                                          std::to_string(m.world_size) +
                                          "; every node needs the same number of ranks (torchrun --nproc-per-node)");
  }
  if (job.phase == Phase::kStopping) {
    return fail(ErrorCode::kUnavailable, name + " is being stopped; attach again in a moment");
  }
  if (job.phase == Phase::kOpening || job.phase == Phase::kRunning) {
    const auto member = job.members.find(m.node.value);
    if (member == job.members.end() || member->second.worker != worker) {
      return fail(ErrorCode::kTopology, "node rank " + std::to_string(m.node.value) + " of " + name +
                                            " is taken: the job is running with " + std::to_string(job.nodes) +
                                            " nodes; use another job name or wait for its end");
    }
    restart(job, "node " + std::to_string(m.node.value) + " attached again", now_ms);
  }
  // What a job is was decided by its record, if there is one with state, else by the first node that joined.
  const bool first = job.members.empty();
  if (job.record.initialised || !first) {
    const std::vector<TensorSpec>& tensors = first ? job.record.tensors : job.members.begin()->second.join.tensors;
    const std::string& json = first ? job.record.job_json : job.members.begin()->second.join.job_json;
    if (const std::string difference = describe_difference(tensors, m.tensors); !difference.empty()) {
      return fail(ErrorCode::kLayoutMismatch, name + " has other tensors than those of node " +
                                                  std::to_string(m.node.value) + ": " + difference +
                                                  "; start the same model on every node, or give the job another name");
    }
    if (const std::string difference = describe_config_difference(json, m.job_json); !difference.empty()) {
      return fail(ErrorCode::kConfigMismatch, name + " was opened with another configuration than that of node " +
                                                  std::to_string(m.node.value) + ": " + difference +
                                                  "; use the same job file on every node, or give the job another name");
    }
  }
  if (!first && (m.nodes != job.nodes ||
                 m.local_world_size != job.members.begin()->second.join.local_world_size)) {
    return fail(ErrorCode::kTopology, "node " + std::to_string(m.node.value) + " believes in " + std::to_string(m.nodes) +
                                          " nodes with " + std::to_string(m.local_world_size) + " ranks each, but " + name +
                                          " is gathering " + std::to_string(job.nodes) + " nodes with " +
                                          std::to_string(job.members.begin()->second.join.local_world_size));
  }
  if (const auto member = job.members.find(m.node.value); member != job.members.end() && member->second.worker != worker) {
    return fail(ErrorCode::kTopology, "node rank " + std::to_string(m.node.value) + " of " + name +
                                          " is taken by worker " + workers_[member->second.worker].hello.name +
                                          "; give every node its own node rank (torchrun --node-rank)");
  }
  if (job.phase == Phase::kIdle) set_phase(job, Phase::kGathering, now_ms);
  job.nodes = m.nodes;
  job.members[m.node.value] = Member{worker, m, {}};
  return {};
}

void CoordinatorCore::open_if_complete(Job& job, std::uint64_t now_ms) {
  if (job.phase != Phase::kGathering || job.members.size() != job.nodes || !all_servers()) return;
  const JoinJob& join = job.members.begin()->second.join;
  Result<JobConfig> config = job_from_json(join.job_json);
  TRIB_ASSERT(config);  // checked when it joined
  job.config = *config;
  if (!job.record.initialised) job.record.tensors = join.tensors;
  job.record.job_json = join.job_json;
  job.record.world_size = join.world_size;
  if (job.record.job.value == 0) job.record.job = JobId(options_.job_id_seed + jobs_.size());
  job.record.view = job.record.view.next();
  job.record.finished = false;
  Status status = choose_snapshot(job);
  if (status) status = lay_out(job);
  if (status) status = output_.save(job.record);
  if (!status) {
    output_.log(in_words(job.config.name) + " cannot open: " + status.error().message);
    send_members(job, ControlError{status.error().code, status.error().message});
    return become_idle(job, now_ms);
  }
  job.ready.clear();
  job.pace.clear();
  job.snapshot.reset();
  job.missed_snapshots = 0;
  job.stop_requested = false;
  set_phase(job, Phase::kOpening, now_ms);
  output_.log(in_words(job.config.name) + " opens view " + std::to_string(job.record.view.value) + " with " +
              std::to_string(job.nodes) + " nodes, " +
              (job.resume ? "from the snapshot of round " + std::to_string(job.resume_round.value) : "fresh"));
  OpenJob open;
  open.job = job.record.job;
  open.view = job.record.view;
  open.job_json = job.record.job_json;
  open.tensors = job.record.tensors;
  open.chunk_elements = job.record.chunk_elements;
  open.owners = job.record.owners;
  open.nodes = job.nodes;
  open.resume = job.resume;
  open.resume_round = job.resume_round;
  send_servers(open);
}

// The newest snapshot that every shard of the job has complete: at least the committed one, unless a store was lost. It can be
// newer: all shards finished it, and the coordinator died before it could commit.
Status CoordinatorCore::choose_snapshot(Job& job) {
  job.resume = job.record.initialised;
  job.resume_round = job.record.committed;
  std::optional<std::set<std::uint64_t>> common;
  for (const std::uint16_t shard : shards_of(job)) {
    std::set<std::uint64_t> rounds;
    if (const auto server = servers_.find(shard); server != servers_.end()) {
      for (const StoredJob& stored : server->second.hello.stored) {
        if (stored.job != job.record.job) continue;
        for (const Round round : stored.snapshots) rounds.insert(round.value);
      }
    }
    if (job.record.initialised && !rounds.contains(job.record.committed.value)) {
      return fail(ErrorCode::kStore, "server " + std::to_string(shard) + "'s store lacks the snapshot of round " +
                                         std::to_string(job.record.committed.value) + " of " + in_words(job.config.name) +
                                         "; start it with the store it had, or start over under another job name");
    }
    if (!common) {
      common = rounds;
    } else {
      std::erase_if(*common, [&](std::uint64_t round) { return !rounds.contains(round); });
    }
  }
  if (common && !common->empty()) {
    job.record.initialised = job.resume = true;
    job.record.committed = job.resume_round = std::max(job.record.committed, Round(*common->rbegin()));
  }
  return {};
}

// A fresh job gets its chunks and owners; a resumed one keeps chunks and shards (that is where its state lies) and spreads each
// shard's chunks over the lanes that the server has today.
Status CoordinatorCore::lay_out(Job& job) {
  std::vector<ShardSlots> slots;
  for (const auto& [index, server] : servers_) {
    slots.push_back({static_cast<std::uint16_t>(server.hello.lane_endpoints.size()), server.hello.bandwidth});
  }
  JobRecord& record = job.record;
  if (!job.resume) {
    Result<Layout> probe = Layout::make(record.tensors, kMinChunkBytes / sizeof(float), slots);
    if (!probe) return tl::unexpected(probe.error());
    record.chunk_elements = job.config.chunk_bytes != 0 ? job.config.chunk_bytes / sizeof(float)
                                                        : default_chunk_elements(probe->flat_elements(), slots);
    Result<Layout> layout = Layout::make(record.tensors, record.chunk_elements, slots);
    if (!layout) return tl::unexpected(layout.error());
    record.owners = layout->owners();
    return {};
  }
  std::vector<std::uint32_t> next(slots.size(), 0);
  for (ChunkOwner& owner : record.owners) {
    if (owner.shard.value >= slots.size()) {
      return fail(ErrorCode::kTopology, in_words(job.config.name) + " has state on server " +
                                            std::to_string(owner.shard.value) + ", but the cluster has " +
                                            std::to_string(slots.size()) +
                                            " servers; start as many servers as before, or start over under another job name");
    }
    owner.lane = LaneIndex(static_cast<std::uint16_t>(next[owner.shard.value]++ % slots[owner.shard.value].lanes));
  }
  return {};
}

void CoordinatorCore::on(PeerId from, const ShardReady& m, std::uint64_t now_ms) {
  Job* job = job_in_view(m.job, m.view);
  const auto shard = std::ranges::find_if(servers_, [&](const auto& s) { return s.second.peer == from; });
  if (!job || job->phase != Phase::kOpening || shard == servers_.end()) return;
  if (!m.ok) {
    send_members(*job, ControlError{m.code, m.message});
    job->members.clear();  // they have been told why; restart() would ask them to attach again
    return restart(*job, "server " + std::to_string(shard->first) + " cannot open it: " + m.message, now_ms);
  }
  job->ready.insert(shard->first);
  if (job->ready.size() != options_.servers) return;
  JobWelcome welcome;
  welcome.job = job->record.job;
  welcome.view = job->record.view;
  welcome.chunk_elements = job->record.chunk_elements;
  welcome.owners = job->record.owners;
  for (const auto& [index, server] : servers_) welcome.endpoints.push_back(server.hello.lane_endpoints);
  welcome.resume = job->resume;
  welcome.resume_round = job->resume_round;
  set_phase(*job, Phase::kRunning, now_ms);
  job->snapshot_due_ms = job->config.snapshot.every_s != 0 ? now_ms + job->config.snapshot.every_s * 1000ull
                         : job->config.snapshot.every_rounds != 0 ? now_ms
                                                                  : kNever;
  send_members(*job, welcome);
}

void CoordinatorCore::on(PeerId from, const LeaveJob& m, std::uint64_t now_ms) {
  Job* job = nullptr;
  const Worker* worker = worker_at(from);
  if (!worker) return;
  // Before the job opened the worker knows neither id nor view (both 0): it leaves whatever it is gathered for at that rank.
  for (auto& [name, candidate] : jobs_) {
    const auto member = candidate.members.find(m.node.value);
    if (member == candidate.members.end() || member->second.worker != worker->hello.incarnation) continue;
    const bool same_view = candidate.record.job == m.job && candidate.record.view == m.view;
    if (same_view || (m.job.value == 0 && candidate.phase == Phase::kGathering)) job = &candidate;
  }
  if (!job) return;
  const std::string who = "node " + std::to_string(m.node.value);
  if (job->phase == Phase::kGathering) {
    job->members.erase(m.node.value);
    if (job->members.empty()) become_idle(*job, now_ms);
    return;
  }
  if (job->phase == Phase::kOpening || m.kind == LeaveKind::kFailed) {
    if (job->phase == Phase::kStopping) return;
    return restart(*job, who + " failed: " + (m.message.empty() ? "no reason given" : m.message), now_ms);
  }
  if (job->phase != Phase::kRunning) return;
  job->members[m.node.value].left = m;
  if (m.kind == LeaveKind::kStopped) {
    // This node has every answer of round m.round and pushes no more: no chunk anywhere can go past it, so all are there.
    return begin_stop(*job, StopKind::kStopped, m.round, m.message.empty() ? who + " was stopped" : m.message, now_ms);
  }
  const bool all_left = std::ranges::all_of(job->members, [](const auto& entry) { return entry.second.left.has_value(); });
  if (all_left) begin_stop(*job, StopKind::kFinished, m.round, "training is complete", now_ms);
}

void CoordinatorCore::request_stop(Job& job, const std::string& reason) {
  if (job.stop_requested) return;
  job.stop_requested = true;
  output_.log(in_words(job.config.name) + " is asked to stop after its round: " + reason);
  send_members(job, StopRequest{job.record.job, job.record.view, reason});
}

void CoordinatorCore::begin_stop(Job& job, StopKind kind, Round round, const std::string& reason, std::uint64_t now_ms) {
  job.stop_kind = kind;
  job.stop_failed = false;
  job.last_stop = reason;
  job.snapshot = round;
  job.snapshot_done.clear();
  set_phase(job, Phase::kStopping, now_ms);
  output_.log(in_words(job.config.name) + " stops at round " + std::to_string(round.value) + ": " + reason);
  const StopJob stop{job.record.job, job.record.view, kind, round, reason};
  send_servers(stop);
  send_members(job, stop);
}

void CoordinatorCore::restart(Job& job, const std::string& reason, std::uint64_t now_ms) {
  job.last_stop = reason;
  output_.log(in_words(job.config.name) + " leaves view " + std::to_string(job.record.view.value) + ": " + reason +
              (job.record.initialised ? "; it can go on from the snapshot of round " + std::to_string(job.record.committed.value)
                                      : "; it has no snapshot yet and starts over"));
  const StopJob stop{job.record.job, job.record.view, StopKind::kRestart, job.record.committed, reason};
  send_servers(stop);
  send_members(job, stop);
  become_idle(job, now_ms);
}

void CoordinatorCore::become_idle(Job& job, std::uint64_t now_ms) {
  job.members.clear();
  job.snapshot.reset();
  job.snapshot_done.clear();
  job.stop_requested = false;
  set_phase(job, Phase::kIdle, now_ms);
}

void CoordinatorCore::on(PeerId from, const SnapshotDone& m, std::uint64_t now_ms) {
  const auto shard = std::ranges::find_if(servers_, [&](const auto& s) { return s.second.peer == from; });
  if (shard == servers_.end()) return;
  const auto owner = std::ranges::find_if(jobs_, [&](const auto& entry) { return entry.second.record.job == m.job; });
  if (owner == jobs_.end()) return;
  Job& job = owner->second;
  if (m.ok) {
    auto& stored = shard->second.hello.stored;
    auto entry = std::ranges::find(stored, m.job, &StoredJob::job);
    if (entry == stored.end()) entry = stored.insert(stored.end(), StoredJob{m.job, job.config.name, 0, {}});
    if (std::ranges::find(entry->snapshots, m.round) == entry->snapshots.end()) entry->snapshots.push_back(m.round);
  }
  if (job.record.view != m.view || job.snapshot != m.round) return;
  if (!m.ok) {
    output_.log("snapshot of round " + std::to_string(m.round.value) + " of " + in_words(job.config.name) +
                " failed on server " + std::to_string(shard->first) + ": " + m.message);
    if (job.phase == Phase::kRunning) {
      job.snapshot.reset();
      ++job.missed_snapshots;
      job.snapshot_due_ms = now_ms + kSnapshotRetryMs;
      return;
    }
    job.stop_failed = true;
  }
  job.snapshot_done.insert(shard->first);
  const std::set<std::uint16_t> needed = shards_of(job);
  if (!std::ranges::includes(job.snapshot_done, needed)) return;
  if (!job.stop_failed) commit(job, m.round);
  if (job.phase == Phase::kStopping) {
    become_idle(job, now_ms);
  } else {
    job.snapshot.reset();
    job.missed_snapshots = 0;
    job.snapshot_due_ms = now_ms + job.config.snapshot.every_s * 1000ull;
  }
}

void CoordinatorCore::commit(Job& job, Round round) {
  job.record.committed = round;
  job.record.initialised = true;
  job.record.finished = job.phase == Phase::kStopping && job.stop_kind == StopKind::kFinished;
  if (const Status saved = output_.save(job.record); !saved) {
    // The snapshots themselves are durable: choose_snapshot() finds them after a restart, so nothing may be dropped now.
    output_.log("cannot record the snapshot of round " + std::to_string(round.value) + ": " + saved.error().message);
    return;
  }
  for (auto& [index, server] : servers_) {
    for (StoredJob& stored : server.hello.stored) {
      if (stored.job == job.record.job) std::erase_if(stored.snapshots, [&](Round r) { return r < round; });
    }
  }
  send_servers(SnapshotCommit{job.record.job, round});
}

void CoordinatorCore::tick_job(Job& job, std::uint64_t now_ms) {
  if (job.phase == Phase::kStopping && now_ms > job.phase_since_ms + kStopPatienceMs) {
    output_.log(in_words(job.config.name) + " could not keep its final state in time; the last snapshot stands");
    return become_idle(job, now_ms);
  }
  if (job.phase != Phase::kRunning) return;
  const auto finished = std::ranges::find_if(job.members, [](const auto& entry) { return entry.second.left.has_value(); });
  const bool lagging = std::ranges::any_of(job.members, [&](const auto& entry) { return !entry.second.left; });
  if (finished != job.members.end() && lagging) {
    // Finished nodes push no more: the others either finish now or wait for ever.
    if (job.snapshot_due_ms != kNever) job.snapshot_due_ms = kNever, job.phase_since_ms = now_ms;
    if (now_ms > job.phase_since_ms + kStopPatienceMs) {
      begin_stop(job, StopKind::kStopped, finished->second.left->round, "some nodes finished, others did not follow", now_ms);
    }
    return;
  }
  if (!job.snapshot && !job.stop_requested && now_ms >= job.snapshot_due_ms) name_snapshot(job, now_ms);
}

void CoordinatorCore::name_snapshot(Job& job, std::uint64_t now_ms) {
  double reach = 0.0;
  for (const auto& [shard, pace] : job.pace) {
    const double age = static_cast<double>(now_ms - pace.at_ms);
    const double lead = (age + kSnapshotLeadMs) * static_cast<double>(std::min(job.missed_snapshots + 1, kMaxSnapshotLeadFactor));
    reach = std::max(reach, static_cast<double>(pace.max_version.value) + pace.rounds_per_ms * lead);
  }
  if (reach == 0.0) return;  // nothing has been trained yet
  std::uint64_t round = static_cast<std::uint64_t>(std::ceil(reach)) + 2;
  const std::uint64_t every = job.config.snapshot.every_rounds;
  if (every != 0) {
    round = (round + every - 1) / every * every;
  }
  job.snapshot = Round(round);
  job.snapshot_done.clear();
  job.stop_failed = false;
  send_servers(SnapshotAt{job.record.job, job.record.view, Round(round)});
}

}  // namespace tributary

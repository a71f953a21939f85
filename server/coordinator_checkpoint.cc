// Checkpoints in the coordinator.
//
// save:     a snapshot is named soon (the job trains on), or the newest committed one is taken
//           -> WriteCheckpoint to the job's shards -> SealCheckpoint to server 0 -> done
// restore:  the chunks are dealt to the servers that there are -> LoadCheckpoint to all of them, which makes a snapshot
//           of a new job id in their stores -> the job's record -> done. From then on it is like any stopped job.
//
// Whatever fails leaves the jobs as they were; what was written for it is dropped.
#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "common/encoding.h"
#include "common/job_json.h"
#include "server/coordinator_core.h"

namespace tributary {
namespace {

// A save that waits this long for its snapshot (nobody trains, or no snapshot succeeds) is given up, but not while one
// is being taken; and any, when a server does not answer for so long (state over disk speed, so very long).
constexpr std::uint64_t kWaitingPatienceMs = 600'000;
constexpr std::uint64_t kWorkingPatienceMs = 4 * 3'600'000;

std::string partial_of(const CheckpointStatus& status) {
  return status.path + kPartialSuffix;
}

}  // namespace

const char* name_of(CheckpointStep step) {
  static constexpr const char* kNames[] = {"waiting", "writing", "sealing", "loading", "done", "failed"};
  return kNames[static_cast<int>(step)];
}

std::optional<CheckpointStatus> CoordinatorCore::checkpoint(std::uint64_t id) const {
  const auto found = checkpoints_.find(id);
  return found == checkpoints_.end() ? std::nullopt : std::optional(found->second.status);
}

Result<std::uint64_t> CoordinatorCore::begin_checkpoint(Checkpoint checkpoint, std::uint64_t now_ms) {
  std::size_t under_way = 0;
  for (const auto& [id, other] : checkpoints_) {
    if (other.status.over()) continue;
    ++under_way;
    if (other.status.job == checkpoint.status.job) {
      return fail(ErrorCode::kInvalidArgument, "job '" + checkpoint.status.job + "' is being " +
                                                   (other.status.restores ? "restored" : "saved") +
                                                   " already; wait for its end");
    }
  }
  if (under_way >= kMaxCheckpointsUnderWay) {
    return fail(ErrorCode::kLimit, std::to_string(under_way) + " checkpoints are being saved or restored, the limit; " +
                                       "wait for their end");
  }
  for (auto at = checkpoints_.begin(); checkpoints_.size() - under_way >= kCheckpointsKept;) {
    at = at->second.status.over() ? checkpoints_.erase(at) : std::next(at);
  }
  const std::uint64_t id = ++last_checkpoint_;
  checkpoint.status.id = id;
  checkpoint.status.begun_ms = now_ms;
  checkpoints_.emplace(id, std::move(checkpoint));
  return id;
}

Result<std::uint64_t> CoordinatorCore::save_checkpoint(const SaveOrder& order, std::uint64_t now_ms) {
  if (draining_) return fail(ErrorCode::kStopped, "the cluster is being stopped; save when it is back");
  if (!order.directory.starts_with('/')) {
    return fail(ErrorCode::kInvalidArgument, "'" + order.directory + "' is no absolute path; servers run elsewhere");
  }
  const auto found = jobs_.find(order.job);
  if (found == jobs_.end()) {
    std::string known;
    for (const auto& [name, job] : jobs_) known += (known.empty() ? "'" : ", '") + name + "'";
    return fail(ErrorCode::kUnknownJob, "there is no job '" + order.job + "' here; " +
                                            (known.empty() ? "there are none" : "there is " + known));
  }
  Job& job = found->second;
  if (!job.on_servers()) {
    return fail(ErrorCode::kInvalidArgument,
                in_words(job) +
                    " trains without servers: the worker of its node 0 keeps checkpoints by itself, in "
                    "allreduce/ below its [store] path");
  }
  const bool trains = job.phase == Phase::kRunning || job.phase == Phase::kStopping;
  if (!job.record.initialised && !trains) {
    return fail(ErrorCode::kNotFound, in_words(job) + " has no state yet: nothing of it was ever committed");
  }
  if (!job.record.initialised && order.committed) {
    return fail(ErrorCode::kNotFound, in_words(job) + " has no committed snapshot yet; leave --committed out");
  }
  Checkpoint checkpoint;
  checkpoint.save = order;
  checkpoint.status.job = order.job;
  const Result<std::uint64_t> id = begin_checkpoint(std::move(checkpoint), now_ms);
  if (!id) return id;
  if (!trains || order.committed) write_checkpoint(checkpoints_.at(*id), job, now_ms);
  return id;
}

bool CoordinatorCore::save_waits(const Job& job) const {
  return std::ranges::any_of(checkpoints_, [&](const auto& entry) {
    return entry.second.status.step == CheckpointStep::kWaiting && entry.second.status.job == job.config.name;
  });
}

// A snapshot is committed: whoever waited for one of this job gets it.
void CoordinatorCore::write_checkpoints(const Job& job, Round round, std::uint64_t now_ms) {
  if (job.record.committed != round) return;
  for (auto& [id, checkpoint] : checkpoints_) {
    const CheckpointStatus& status = checkpoint.status;
    if (status.step != CheckpointStep::kWaiting || status.restores || status.job != job.config.name) continue;
    write_checkpoint(checkpoint, job, now_ms);
  }
}

void CoordinatorCore::write_checkpoint(Checkpoint& checkpoint, const Job& job, std::uint64_t now_ms) {
  CheckpointStatus& status = checkpoint.status;
  checkpoint.record = job.record;
  checkpoint.nodes = job.nodes;
  status.round = job.record.committed;
  status.path = checkpoint.save.directory + (checkpoint.save.directory.ends_with('/') ? "" : "/") +
                checkpoint_name(status.job, status.round);
  status.step = CheckpointStep::kWriting;
  status.awaited = shards_of(job);
  for (const std::uint16_t shard : std::set(status.awaited)) {
    const auto server = servers_.find(shard);
    if (server == servers_.end() || !server->second.alive) {
      return end_checkpoint(checkpoint, "server " + std::to_string(shard) + ", which has a part of it, is not there",
                            now_ms);
    }
    output_.send(server->second.peer,
                 WriteCheckpoint{status.id, checkpoint.record.job, status.round, partial_of(status)});
  }
}

void CoordinatorCore::seal_checkpoint(Checkpoint& checkpoint, std::uint64_t now_ms) {
  CheckpointStatus& status = checkpoint.status;
  const auto sealer = servers_.find(0);
  if (sealer == servers_.end() || !sealer->second.alive) {
    return end_checkpoint(checkpoint, "server 0, which finishes checkpoints, is not there", now_ms);
  }
  const JobRecord& record = checkpoint.record;
  Manifest manifest;
  manifest.created = checkpoint.save.created;
  manifest.job_json = record.job_json;
  manifest.round = status.round;
  manifest.view = record.view;
  manifest.nodes = checkpoint.nodes;
  manifest.world_size = record.world_size;
  manifest.tensors = record.tensors;
  // What ranks keep may have come after the snapshot was committed.
  const auto job = jobs_.find(status.job);
  const bool current =
      job != jobs_.end() && job->second.record.job == record.job && job->second.record.committed == record.committed;
  manifest.rank_states = current ? job->second.record.rank_states : record.rank_states;
  manifest.computed_with = record.computed_with;
  manifest.chunk_elements = record.chunk_elements;
  for (const ChunkOwner owner : record.owners) manifest.chunk_shards.push_back(owner.shard);
  std::ranges::sort(checkpoint.shards, {}, &ManifestShard::shard);
  manifest.shards = checkpoint.shards;
  status.step = CheckpointStep::kSealing;
  status.awaited = {0};
  output_.send(sealer->second.peer, SealCheckpoint{status.id, partial_of(status), status.path, to_json(manifest)});
}

void CoordinatorCore::on(PeerId from, const CheckpointDone& m, std::uint64_t now_ms) {
  const Server* server = server_at(from);
  const auto found = checkpoints_.find(m.operation);
  if (!server || found == checkpoints_.end()) return;
  Checkpoint& checkpoint = found->second;
  CheckpointStatus& status = checkpoint.status;
  const ShardIndex shard = server->hello.shard;
  if (status.over() || status.awaited.erase(shard.value) == 0) return;
  if (!m.ok) return end_checkpoint(checkpoint, m.message, now_ms);
  status.bytes += m.bytes;
  if (status.step == CheckpointStep::kWriting) {
    const auto chunks = std::ranges::count(checkpoint.record.owners, shard, &ChunkOwner::shard);
    checkpoint.shards.push_back(
        {shard_file_name(shard), shard, static_cast<std::uint32_t>(chunks), m.bytes, m.checksum});
    if (status.awaited.empty()) seal_checkpoint(checkpoint, now_ms);
  } else if (status.step == CheckpointStep::kSealing) {
    status.unchanged = m.unchanged;
    end_checkpoint(checkpoint, {}, now_ms);
  } else if (status.awaited.empty()) {
    finish_restore(checkpoint, now_ms);
  }
}

Result<std::uint64_t> CoordinatorCore::restore_checkpoint(const RestoreOrder& order, std::uint64_t now_ms) {
  if (draining_) return fail(ErrorCode::kStopped, "the cluster is being stopped; restore when it is back");
  if (!all_servers()) {
    return fail(ErrorCode::kUnavailable,
                "not all " + std::to_string(options_.servers) + " servers of the cluster are there; start them first");
  }
  if (options_.servers == 0) {
    return fail(ErrorCode::kTopology, "this cluster has no servers to restore a job on");
  }
  if (const auto known = jobs_.find(order.name); known != jobs_.end()) {
    const Job& job = known->second;
    if (job.phase != Phase::kIdle) {
      return fail(ErrorCode::kInvalidArgument, in_words(job) + " is in use (" +
                                                   (job.members.empty() ? "stopping" : "nodes have joined") +
                                                   "); stop its trainers first, or restore under another name");
    }
    if ((job.record.initialised || !job.kept.empty()) && !order.force) {
      return fail(ErrorCode::kInvalidArgument, in_words(job) + " is there already, at round " +
                                                   std::to_string(job.record.committed.value) +
                                                   "; give --force to replace it, or restore under another name");
    }
  }
  if (const std::set<JobId> others = strangers(order.name); !others.empty() && !order.force) {
    return fail(ErrorCode::kInvalidArgument,
                "servers have state of a job '" + order.name + "' (job id " + std::to_string(others.begin()->value) +
                    ") that the registry in server 0's store does not know; start server 0 with the store that it had, "
                    "or give --force to replace that state, or restore under another name");
  }
  Result<JobRecord> record = record_of(order);
  if (!record) return tl::unexpected(record.error());
  Checkpoint checkpoint;
  CheckpointStatus& status = checkpoint.status;
  status.restores = true;
  status.job = order.name;
  status.step = CheckpointStep::kLoading;
  status.round = record->committed;
  status.path = order.directory;
  for (const ChunkOwner owner : record->owners) status.awaited.insert(owner.shard.value);
  checkpoint.record = std::move(*record);
  const Result<std::uint64_t> id = begin_checkpoint(std::move(checkpoint), now_ms);
  if (!id) return id;
  const Checkpoint& begun = checkpoints_.at(*id);
  Job& job = jobs_[order.name];
  job.restoring = true;
  job.config = job_from_json(begun.record.job_json).value();
  output_.log(in_words(job) + " is being restored from '" + order.directory + "', round " +
              std::to_string(begun.status.round.value));
  for (const std::uint16_t shard : begun.status.awaited) {
    output_.send(servers_.at(shard).peer, LoadCheckpoint{*id, begun.record.job, order.name, order.manifest_checksum,
                                                         order.directory, begun.record.owners});
  }
  return id;
}

// What the job will be: a new id, under which no store has anything yet, and its chunks dealt anew. Whose workers it
// will have is not known yet; those that are there now are reckoned with.
Result<JobRecord> CoordinatorCore::record_of(const RestoreOrder& order) {
  const Manifest& manifest = order.manifest;
  JobConfig config = job_of(manifest);
  config.name = order.name;
  if (!on_servers(config)) {
    return fail(ErrorCode::kInvalidArgument, "a job of mode \"allreduce\" has no state on servers to restore");
  }
  JobRecord record;
  record.job = fresh_id();
  record.job_json = to_canonical_json(config);
  // Checks the name, which people chose.
  if (const Result<JobConfig> checked = job_from_json(record.job_json); !checked) {
    return tl::unexpected(checked.error());
  }
  std::vector<PlacedDaemon> servers, workers;
  for (const auto& [incarnation, worker] : workers_) {
    workers.push_back({"worker " + worker.hello.name, worker.hello.host, worker.hello.bandwidth});
  }
  std::vector<ShardSlots> slots;
  for (const auto& [index, server] : servers_) {
    servers.push_back({"server " + std::to_string(index), workers.empty() ? std::string() : server.hello.host,
                       server.hello.bandwidth});
    slots.push_back({static_cast<std::uint16_t>(server.hello.lane_endpoints.size())});
  }
  const JobHosts hosts = hosts_of_job(servers, workers);
  const Result<std::vector<double>> weights = server_weights(hosts, wire_ratio(config.push, config.pull));
  if (!weights) return tl::unexpected(weights.error());
  for (std::size_t s = 0; s < slots.size(); ++s) slots[s].weight = (*weights)[s];
  const Result<Layout> layout = place_chunks(manifest.tensors, manifest.chunk_elements, slots, hosts);
  if (!layout) return tl::unexpected(layout.error());
  record.tensors = manifest.tensors;
  record.rank_states = manifest.rank_states;
  record.computed_with = manifest.computed_with;
  record.chunk_elements = manifest.chunk_elements;
  record.owners = layout->owners();
  record.world_size = manifest.world_size;
  record.committed = manifest.round;
  record.initialised = true;
  // Of two records with one name the one with the higher view counts, until the older one is dropped.
  if (const auto known = jobs_.find(order.name); known != jobs_.end()) record.view = known->second.record.view.next();
  return record;
}

void CoordinatorCore::finish_restore(Checkpoint& checkpoint, std::uint64_t now_ms) {
  const JobRecord& record = checkpoint.record;
  if (const Status saved = output_.save(record); !saved) {
    return end_checkpoint(checkpoint, "cannot record the job: " + saved.error().message, now_ms);
  }
  Job& job = jobs_.at(checkpoint.status.job);
  std::set<JobId> replaced = strangers(checkpoint.status.job);
  replaced.insert(job.older.begin(), job.older.end());
  if (job.record.job.value != 0) replaced.insert(job.record.job);
  job = Job{};
  job.older = std::move(replaced);
  job.record = record;
  job.config = job_from_json(record.job_json).value();
  for (const std::uint16_t shard : shards_of(job)) {
    servers_.at(shard).hello.stored.push_back({record.job, job.config.name, 0, {record.committed}});
  }
  drop_older(job);
  end_checkpoint(checkpoint, {}, now_ms);
}

// failure: why; empty: it is done.
void CoordinatorCore::end_checkpoint(Checkpoint& checkpoint, const std::string& failure, std::uint64_t now_ms) {
  CheckpointStatus& status = checkpoint.status;
  const std::string what = std::string(status.restores ? "restore" : "save") + " of job '" + status.job + "'";
  status.ended_ms = now_ms;
  if (failure.empty()) {
    status.step = CheckpointStep::kDone;
    output_.log("the " + what + " is done: '" + status.path + "'" +
                (status.unchanged ? ", which was there already" : ""));
    return;
  }
  const bool begun = status.step != CheckpointStep::kWaiting;
  status.step = CheckpointStep::kFailed;
  status.message = failure;
  output_.log("the " + what + " failed: " + failure, LogLevel::kError);
  if (status.restores) {
    Job& job = jobs_.at(status.job);
    send_servers(job, DropCheckpoint{checkpoint.record.job, {}});
    job.restoring = false;
    if (job.record.job.value == 0) jobs_.erase(status.job);
  } else if (begun) {
    const DropCheckpoint drop{JobId(0), partial_of(status)};
    for (const auto& [index, server] : servers_) {
      if (server.alive) output_.send(server.peer, drop);
    }
  }
}

// The view ended, and no snapshot of it will be committed any more.
void CoordinatorCore::fail_checkpoints_of(const Job& job, const std::string& why, std::uint64_t now_ms) {
  for (auto& [id, checkpoint] : checkpoints_) {
    if (checkpoint.status.step != CheckpointStep::kWaiting || checkpoint.status.job != job.config.name) continue;
    end_checkpoint(
        checkpoint,
        "the job stopped before its snapshot was complete (" + why + "); --committed saves the newest one that is",
        now_ms);
  }
}

void CoordinatorCore::fail_checkpoints_with(std::uint16_t server, const std::string& why, std::uint64_t now_ms) {
  for (auto& [id, checkpoint] : checkpoints_) {
    if (!checkpoint.status.over() && checkpoint.status.awaited.contains(server)) {
      end_checkpoint(checkpoint, why, now_ms);
    }
  }
}

void CoordinatorCore::tick_checkpoints(std::uint64_t now_ms) {
  for (auto& [id, checkpoint] : checkpoints_) {
    const CheckpointStatus& status = checkpoint.status;
    if (status.over()) continue;
    const bool waiting = status.step == CheckpointStep::kWaiting;
    if (now_ms <= status.begun_ms + (waiting ? kWaitingPatienceMs : kWorkingPatienceMs)) continue;
    const auto job = jobs_.find(status.job);
    if (waiting && job != jobs_.end() && job->second.snapshot) continue;
    end_checkpoint(checkpoint,
                   waiting ? "no snapshot was committed in time; does the job make progress? --committed saves the "
                             "newest one that there is"
                           : "the servers did not answer in time",
                   now_ms);
  }
}

}  // namespace tributary

// Orders of people: save and restore checkpoints, remove jobs.
//
// The registry, in the store of server 0, lists the jobs; the stores of all servers have their state. A registry that was
// lost, or that belongs to other stores, lacks jobs that servers have snapshots of. Such a job must not restart from
// scratch: a job with progress anywhere in the cluster never opens fresh, unless that was asked for by name
// (remove_job(), a forced restore).
#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/config/job_json.h"
#include "server/coordinator/coordinator_core.h"

namespace tributary {
namespace {

tl::unexpected<Error> searching() {
  return fail(ErrorCode::kUnavailable,
              "the coordinator is still looking for newer copies of its registry on the other servers; try again in a "
              "moment");
}

}  // namespace

std::set<JobId> CoordinatorCore::strangers(const std::string& name) const {
  std::set<JobId> ids = context_.peers.stored_under(name);
  const auto known = jobs_.find(name);
  if (known != jobs_.end()) std::erase_if(ids, [&](JobId id) { return known->second.knows(id); });
  return ids;
}

Result<std::uint64_t> CoordinatorCore::save_checkpoint(const SaveOrder& order, std::uint64_t now_ms) {
  if (context_.draining) return fail(ErrorCode::kStopped, "the cluster is being stopped; save when it is back");
  if (context_.copies.searching()) return searching();
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
  const CoordinatedJob& job = found->second;
  if (job.servers() == 0) {
    return fail(ErrorCode::kInvalidArgument,
                job.in_words() +
                    " trains without servers: the worker of its node 0 keeps checkpoints by itself, in "
                    "allreduce/ below its [store] path");
  }
  const bool initialised = job.record().initialised;
  if (!initialised && !job.trains() && !job.round_in_memory()) {
    return fail(ErrorCode::kNotFound, job.in_words() + " has no state yet: nothing of it was ever committed");
  }
  if (!initialised && order.committed) {
    return fail(ErrorCode::kNotFound, job.in_words() + " has no committed snapshot yet; leave --committed out");
  }
  return begin_save(order, job, now_ms);
}

// The save of a job that trains waits for the next snapshot.
Result<std::uint64_t> CoordinatorCore::begin_save(const SaveOrder& order, const CoordinatedJob& job,
                                                  std::uint64_t now_ms) {
  const Result<std::uint64_t> id = context_.checkpoints.save(order, now_ms);
  if (!id || (job.trains() && !order.committed)) return id;
  const auto in_memory = order.committed ? std::nullopt : job.round_in_memory();
  context_.checkpoints.write(order.job, in_memory ? job.record_at(*in_memory) : job.record(), job.nodes(), job.shards(),
                             now_ms, in_memory ? job.record().view : ViewId());
  return id;
}

// If an order for this job is under way, or there are many, that waits.
void CoordinatorCore::save_scheduled(CoordinatedJob& job, std::uint64_t now_ms) {
  const CheckpointConfig& config = job.config().checkpoint;
  const SaveOrder order{.job = job.config().name,
                        .directory = config.dir,
                        .created = utc_at(context_.output.wall_ms()),
                        .committed = !job.store_broken(),
                        .scheduled = true,
                        .keep = config.keep};
  if (const Result<std::uint64_t> id = begin_save(order, job, now_ms)) job.checkpoint_ordered(*id, now_ms);
}

Result<std::uint64_t> CoordinatorCore::restore_checkpoint(const RestoreOrder& order, std::uint64_t now_ms) {
  if (context_.draining) return fail(ErrorCode::kStopped, "the cluster is being stopped; restore when it is back");
  if (!context_.peers.all_servers()) {
    return fail(ErrorCode::kUnavailable, "not all " + std::to_string(context_.options.servers) +
                                             " servers of the cluster are there; start them first");
  }
  if (context_.options.servers == 0) {
    return fail(ErrorCode::kTopology, "this cluster has no servers to restore a job on");
  }
  if (context_.copies.searching()) return searching();
  auto known = jobs_.find(order.name);
  if (known != jobs_.end()) {
    const CoordinatedJob& job = known->second;
    if ((!job.idle() && !job.awaited()) || job.removing() || job.saves_kept()) {
      return fail(ErrorCode::kInvalidArgument, job.in_words() + " is in use (" +
                                                   (job.removing()          ? "being removed"
                                                    : job.members().empty() ? "stopping"
                                                                            : "nodes have joined") +
                                                   "); stop its trainers first, or restore under another name");
    }
    if ((job.record().initialised || job.kept_by_servers()) && !order.force) {
      return fail(ErrorCode::kInvalidArgument, job.in_words() + " is there already, at round " +
                                                   std::to_string(job.record().committed.value) +
                                                   "; give --force to replace it, or restore under another name");
    }
  }
  if (const std::set<JobId> others = strangers(order.name); !others.empty() && !order.force) {
    return fail(ErrorCode::kInvalidArgument,
                "servers have state of a job '" + order.name + "' (job id " + std::to_string(others.begin()->value) +
                    ") that the registry in server 0's store does not know; start server 0 with the store that it had, "
                    "or give --force to replace that state, or restore under another name");
  }
  JobConfig wanted = job_of(order.manifest);
  wanted.name = order.name;
  if (!on_servers(wanted)) {
    return fail(ErrorCode::kInvalidArgument, "a job of mode \"allreduce\" has no state on servers to restore");
  }
  const std::string job_json = to_canonical_json(wanted);
  Result<JobConfig> config = job_from_json(job_json);  // checks the name, which people chose
  if (!config) return tl::unexpected(config.error());
  if (const Status room = context_.peers.room_for_another_job(); !room) return tl::unexpected(room.error());
  Result<JobRecord> record = record_to_restore(order.manifest, *config);
  if (!record) return tl::unexpected(record.error());
  record->job_json = job_json;
  const Result<std::uint64_t> id = context_.checkpoints.restore(order, *record, now_ms);
  if (!id) return id;
  if (known == jobs_.end()) known = jobs_.try_emplace(order.name, context_, *config).first;
  known->second.begin_loading({std::move(*config), "restored"}, now_ms);
  return id;
}

// Returns the job's record after the restore: a new id, under which no store has anything yet, and its chunks dealt again,
// for the workers that are connected now.
Result<JobRecord> CoordinatorCore::record_to_restore(const Manifest& manifest, const JobConfig& config) {
  const Result<Layout> layout =
      deal_to(context_.peers.those_that_stay(), context_.peers, config, manifest.tensors, manifest.chunk_elements);
  if (!layout) return tl::unexpected(layout.error());
  JobRecord record;
  record.job = fresh_id();
  record.tensors = manifest.tensors;
  record.rank_states = manifest.rank_states;
  record.computed_with = manifest.computed_with;
  record.chunk_elements = manifest.chunk_elements;
  record.owners = layout->owners();
  record.world_size = manifest.world_size;
  record.committed = manifest.round;
  record.initialised = true;
  // If two records have one name, the one with the higher view counts, until the older one is dropped.
  if (const auto known = jobs_.find(config.name); known != jobs_.end())
    record.view = known->second.record().view.next();
  return record;
}

const JobRecord* CoordinatorCore::record_of(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second.record();
}

bool CoordinatorCore::takes_snapshot(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && found->second.takes_snapshot();
}

bool CoordinatorCore::has_part(JobId job, const LargePart& large) const {
  return context_.parts.has(job, large);
}

bool CoordinatorCore::has_yet_to_reach(const std::string& job, Round round) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && found->second.has_yet_to_reach(round);
}

RankStates CoordinatorCore::rank_states_at(const std::string& job, Round round) const {
  return jobs_.at(job).rank_states_at(round);
}

bool CoordinatorCore::state_comes(const std::string& job, Round round, bool whole, std::uint64_t now_ms) {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && found->second.state_comes(round, whole, now_ms);
}

std::uint64_t CoordinatorCore::state_taken(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? 0 : found->second.state_taken();
}

void CoordinatorCore::part_is_there(JobId id, std::uint64_t now_ms) {
  if (CoordinatedJob* job = job_with(id)) job->part_is_there(now_ms);
}

void CoordinatorCore::loaded(const std::string& name, const JobRecord& record) {
  context_.parts.restored(record.job);
  const auto before = jobs_.find(name);
  std::set<JobId> older = strangers(name);
  older.merge(before->second.ids());
  older.erase(record.job);  // a server that had loaded its part may have said hello since
  std::set<std::uint16_t> out = before->second.placed().out();
  JobConfig config = before->second.end_loading();
  jobs_.erase(before);
  CoordinatedJob& job = jobs_.try_emplace(name, context_, config, record, std::move(older)).first->second;
  for (const std::uint16_t shard : job.shards()) {
    context_.peers.add_snapshot(shard, record.job, name, record.committed);
  }
  job.placed().leave_out(std::move(out));
  job.drop_older();
}

void CoordinatorCore::not_loaded(const std::string& name, const std::string& why, std::uint64_t now_ms) {
  const auto job = jobs_.find(name);
  job->second.end_loading();
  job->second.placed().failed(why, now_ms);
  if (job->second.record().job.value == 0) jobs_.erase(job);
}

Result<std::uint64_t> CoordinatorCore::deal_job(const std::string& name, const std::set<std::uint16_t>& without,
                                                std::uint64_t now_ms) {
  if (context_.draining) return fail(ErrorCode::kStopped, "the cluster is being stopped; order it when it is back");
  if (!without.empty() && *without.rbegin() >= context_.options.servers) {
    return fail(ErrorCode::kInvalidArgument, "there is no server " + std::to_string(*without.rbegin()) +
                                                 ": the cluster has " + std::to_string(context_.options.servers));
  }
  if (without.size() == context_.options.servers) {
    return fail(ErrorCode::kInvalidArgument, "no server would be left for job '" + name + "'");
  }
  // One that was heard a moment ago, or could not be yet, is not gone: it may be starting.
  std::set<std::uint16_t> gone = without;
  std::erase_if(gone, [&](std::uint16_t index) {
    return context_.peers.alive(index) || now_ms < context_.since_ms(index) + context_.options.peer_timeout_ms;
  });
  if (context_.copies.searching()) {
    context_.given_up.merge(gone);  // for the search
    return searching();
  }
  const auto known = jobs_.find(name);
  if (known == jobs_.end()) return fail(ErrorCode::kUnknownJob, "nobody in the cluster has a job '" + name + "'");
  CoordinatedJob& job = known->second;
  if (job.servers() == 0) {
    return fail(ErrorCode::kInvalidArgument, job.in_words() + " trains without servers: it has no chunks on them");
  }
  if (job.loading() || job.removing()) {
    return fail(ErrorCode::kUnavailable, job.in_words() + " is being loaded or removed; order it when that is over");
  }
  if (!job.record().initialised && !job.trains()) {
    return fail(ErrorCode::kNotFound, job.in_words() + " has no snapshot: it begins on the servers that are there");
  }
  std::set<std::uint16_t> to = context_.peers.those_that_stay();
  std::erase_if(to, [&](std::uint16_t index) { return without.contains(index); });
  if (to.empty()) return fail(ErrorCode::kInvalidArgument, "no server would be left for " + job.in_words());
  for (const std::uint16_t shard : job.shards()) {
    if (context_.peers.alive(shard) || gone.contains(shard) || context_.may_decide()) continue;
    const std::string who = "server " + std::to_string(shard);
    if (without.contains(shard)) {
      return fail(ErrorCode::kUnavailable, who +
                                               " has not been away for long, and may be starting; order it again in " +
                                               std::to_string(context_.options.peer_timeout_ms / 1000 + 1) + " s");
    }
    return fail(ErrorCode::kUnavailable, who + ", which has chunks of " + job.in_words() +
                                             ", is away, and may be under another coordinator; if " + who +
                                             " is gone, order --without " + std::to_string(shard));
  }
  context_.given_up.merge(gone);
  job.placed().order(without);
  return to.size();
}

// The chunks of a job go to other servers, if that is due.
void CoordinatorCore::look_at_servers(CoordinatedJob& job, std::uint64_t now_ms) {
  const auto change = job.change_due(now_ms);
  if (!change) return;
  if (const Status begun = deal(job, *change, now_ms); !begun) {
    job.placed().failed(begun.error().message, now_ms);
    context_.output.log("the chunks of " + job.in_words() +
                            " cannot go to other servers, which is tried again: " + begun.error().message,
                        LogLevel::kWarning);
  }
}

Status CoordinatorCore::deal(CoordinatedJob& job, const JobServers::Change& change, std::uint64_t now_ms) {
  const Peers& peers = context_.peers;
  if (const Status room = peers.room_for_another_job(); !room) return room;
  if (const Status room = context_.checkpoints.room_for(job.config().name); !room) return room;
  const Result<Layout> layout =
      deal_to(change.to, peers, job.config(), job.record().tensors, job.record().chunk_elements);
  if (!layout) return tl::unexpected(layout.error());
  const auto shard = [](const ChunkOwner& owner) { return owner.shard; };
  if (std::ranges::equal(layout->owners(), job.record().owners, {}, shard, shard)) {
    job.placed().settled(change);
    return {};
  }
  std::vector<std::string> names;
  for (const std::uint16_t index : change.to) names.push_back("server " + std::to_string(index));
  const std::string what = "dealt to " + listed(names, " and ") + " (" + change.why + ")";
  if (const Status left = job.leave_servers(what, now_ms); !left) return left;
  const JobRecord before = job.record();
  std::vector<DealtPart> parts;
  for (const std::uint16_t index : job.shards()) {
    parts.push_back({ShardIndex(index),
                     peers.reader_of_part(index, before.job, before.committed, job.placed().failures() % 2 != 0)});
    if (!parts.back().from.copy_endpoint.empty()) continue;
    return fail(ErrorCode::kStore, "nobody can read server " + std::to_string(index) + "'s part of round " +
                                       std::to_string(before.committed.value) + ", or a copy of it");
  }
  for (const LargePart& large : large_parts_of(before.rank_states)) {
    if (context_.parts.has(before.job, large) || job.config().membership.on_state_lost != OnStateLost::kRewind)
      continue;
    return fail(ErrorCode::kStore, "a large part of what ranks keep with round " +
                                       std::to_string(before.committed.value) +
                                       " is lost, and membership.on_state_lost = \"rewind\" does not go on without");
  }
  const JobRecord record = job.record_on(layout->owners(), fresh_id());
  context_.output.log(job.in_words() + " is being " + what + ", from round " + std::to_string(record.committed.value));
  const Status begun = context_.checkpoints.deal(job.config().name, record, before, parts, now_ms);
  if (begun) job.begin_loading({job.config(), what, std::make_unique<SnapshotCopies>(context_)}, now_ms);
  return begun;
}

Result<std::uint64_t> CoordinatorCore::stop_job(const std::string& name, const std::string& reason) {
  const auto known = jobs_.find(name);
  if (known == jobs_.end()) return fail(ErrorCode::kUnknownJob, "nobody in the cluster has a job '" + name + "'");
  CoordinatedJob& job = known->second;
  const JobStatus status = job.status();
  if (!job.trains()) {
    return fail(ErrorCode::kInvalidArgument,
                job.in_words() + " does not run (it is " + status.phase + "): there is nothing to stop");
  }
  job.request_stop(reason);
  return status.max_version.value;
}

Result<std::uint64_t> CoordinatorCore::remove_job(const std::string& name) {
  if (context_.draining) return fail(ErrorCode::kStopped, "the cluster is being stopped; remove jobs when it is back");
  if (context_.options.servers == 0) {
    return fail(ErrorCode::kTopology,
                "this cluster has no servers: what there is of job '" + name +
                    "' lies in the workers' stores, in allreduce/ below [store] path; delete it there");
  }
  const auto known = jobs_.find(name);
  std::set<JobId> ids = strangers(name);
  if (known != jobs_.end()) {
    const CoordinatedJob& job = known->second;
    if (!job.idle() || job.loading() || job.saves() || job.saves_kept() || context_.checkpoints.awaits_snapshot(name)) {
      return fail(ErrorCode::kInvalidArgument, job.in_words() + " is in use; stop its trainers first");
    }
    ids.merge(job.ids());
  }
  if (!context_.peers.all_servers()) {
    return fail(ErrorCode::kUnavailable, "not all " + std::to_string(context_.options.servers) +
                                             " servers of the cluster are there, and what an absent one has of job '" +
                                             name + "' would stay; start them first");
  }
  if (context_.copies.searching()) return searching();
  if (known == jobs_.end() && ids.empty()) {
    return fail(ErrorCode::kUnknownJob, "nobody in the cluster has a job '" + name + "'");
  }
  // The rest follows when the records are gone (removed()); the job's own goes last.
  const JobId own = known == jobs_.end() ? JobId() : known->second.record().job;
  for (const JobId id : ids) {
    if (id != own) context_.remove(id);
  }
  if (own.value != 0) {
    known->second.begin_removal();
    context_.remove(own);
  } else if (known != jobs_.end()) {
    jobs_.erase(known);
  }
  return ids.size();
}

void CoordinatorCore::removed(JobId id, const Status& status, std::uint64_t now_ms) {
  context_.removing.erase(id);
  const auto found = std::ranges::find_if(jobs_, [&](const auto& entry) { return entry.second.knows(id); });
  const bool own = found != jobs_.end() && found->second.record().job == id;
  const bool ordered = found == jobs_.end() || found->second.removing();
  if (!status) {
    context_.output.log("cannot remove the record of job id " + std::to_string(id.value) + ": " +
                            status.error().message + (ordered ? "; what there is of it stays, remove it again" : ""),
                        LogLevel::kError);
    if (own) found->second.end_removal();
    return answer_drains(now_ms);
  }
  context_.parts.forget(id);
  context_.peers.forget_job(id);
  context_.copies.forget(id);
  context_.send_servers(DropCheckpoint{id, {}});  // with their copies of the record
  if (own) {
    context_.output.log(found->second.in_words() + " is removed by order, with all that servers have of it");
    jobs_.erase(found);
  } else if (found != jobs_.end()) {
    found->second.removed(id);
  }
  answer_drains(now_ms);
}

}  // namespace tributary

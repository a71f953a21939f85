// Who has progress of a job, and its end by order.
//
// What jobs there are is in the registry, in the store of server 0; what there is of them, in the stores of all
// servers. A registry that was lost, or that belongs to other stores, knows nothing of jobs that the servers have
// snapshots of. Such a job must not begin anew as if nobody had ever trained it: the rule is that a job that anybody in
// the cluster has progress of never opens fresh, unless that was asked for by name (remove_job(), a forced restore).
#include <algorithm>

#include "common/assert.h"
#include "server/coordinator_core.h"

namespace tributary {

namespace {

std::string rounds_of(const StoredJob& stored) {
  return "round " + std::to_string(std::ranges::max(stored.snapshots).value);
}

}  // namespace

// The ids of this name that the registry does not know, on servers that are there or were.
std::set<JobId> CoordinatorCore::strangers(const std::string& name) const {
  const auto known = jobs_.find(name);
  std::set<JobId> ids;
  for (const auto& [index, server] : servers_) {
    for (const StoredJob& stored : server.hello.stored) {
      if (stored.name != name || stored.snapshots.empty()) continue;
      if (known == jobs_.end() || !known->second.knows(stored.job)) ids.insert(stored.job);
    }
  }
  return ids;
}

// REQUIRES: nothing of the job that the registry knows can be gone on from.
Status CoordinatorCore::may_open_fresh(const Job& job) const {
  for (const auto& [index, server] : servers_) {
    for (const StoredJob& stored : server.hello.stored) {
      if (stored.name != job.config.name || stored.snapshots.empty() || job.knows(stored.job)) continue;
      return fail(ErrorCode::kStore,
                  "server " + std::to_string(index) + "'s store has " + rounds_of(stored) + " of " + in_words(job) +
                      " (job id " + std::to_string(stored.job.value) +
                      "), which the registry in server 0's store does not know; it is not begun anew: start all "
                      "servers with the stores that they had (is [store] path of server 0 right?), or restore a "
                      "checkpoint (tributary checkpoint restore --force), or delete what there is of it "
                      "(tributary job remove " +
                      job.config.name + ")");
    }
  }
  return {};
}

// All-reduce: node 0 has the state, if anybody has. But it may be another machine than before, or have lost its store;
// then another node has a newer checkpoint, or this coordinator knows how far the job was when it stopped.
Status CoordinatorCore::choose_checkpoint(Job& job) {
  const auto& [first_node, first] = *job.members.begin();
  const Round checkpoint = first.join.checkpoint_round;
  const auto newest =
      std::ranges::max_element(job.members, {}, [](const auto& entry) { return entry.second.join.checkpoint_round; });
  const Round theirs = newest->second.join.checkpoint_round;
  const std::string has = "node " + std::to_string(first_node) + ", whose checkpoint the job would go on from, has " +
                          (checkpoint.value == 0 ? "none" : "only round " + std::to_string(checkpoint.value));
  if (theirs > checkpoint) {
    const auto worker = workers_.find(newest->second.worker);
    return fail(ErrorCode::kStore,
                "node " + std::to_string(newest->first) + " (worker " +
                    (worker == workers_.end() ? std::string("unknown") : worker->second.hello.name) +
                    ") has a checkpoint of round " + std::to_string(theirs.value) + " of " + in_words(job) + ", and " +
                    has +
                    "; start that machine as node 0, copy the job's folder in allreduce/ below its [store] path " +
                    "to node 0's, or remove it there to do without it");
  }
  Round& known = job.record.committed;
  if (checkpoint.value == 0 && known.value != 0) {
    return fail(ErrorCode::kStore,
                in_words(job) + " was at round " + std::to_string(known.value) + ", and " + has +
                    " (is [store] path of its worker right, and is it the machine that was node 0?);"
                    " bring its folder in allreduce/ back, or begin anew: under another job.name, or "
                    "after " +
                    (options_.servers == 0 ? std::string("a restart of the worker that serves the "
                                                         "coordinator")
                                           : "`tributary job remove " + job.config.name + "`"));
  }
  // A stop that was begun, and whose checkpoint was never written: those rounds come again.
  if (known > checkpoint) {
    output_.log(in_words(job) + " was at round " + std::to_string(known.value) +
                ", of which no checkpoint was written; it goes on from round " + std::to_string(checkpoint.value));
  }
  job.resume = checkpoint.value != 0;
  job.record.initialised = false;
  known = job.resume_round = checkpoint;
  return {};
}

// A server is there with what nobody will name by itself.
void CoordinatorCore::note_strangers(const ServerHello& m) {
  for (const StoredJob& stored : m.stored) {
    const auto known = jobs_.find(stored.name);
    if (stored.snapshots.empty() || (known != jobs_.end() && known->second.knows(stored.job))) continue;
    output_.log("server " + std::to_string(m.shard.value) + "'s store has " + rounds_of(stored) + " of job '" +
                stored.name + "' (job id " + std::to_string(stored.job.value) +
                "), which the registry does not know; if it is not wanted, `tributary job remove " + stored.name +
                "` deletes it");
  }
}

// What servers have of it goes. (Its record is gone, or replaced.)
void CoordinatorCore::drop_state(JobId id) {
  for (auto& [index, server] : servers_) {
    std::erase_if(server.hello.stored, [&](const StoredJob& stored) { return stored.job == id; });
    if (server.alive) output_.send(server.peer, DropCheckpoint{id, {}});
  }
}

// Trainings of that name that this one took the place of. Their records stay until no server says any more that it has
// something of them: else that would be a stranger's. (Servers say it when they say hello.)
void CoordinatorCore::drop_older(Job& job) {
  std::erase_if(job.older, [&](JobId id) {
    bool stored = false;
    for (const auto& [index, server] : servers_) {
      if (std::ranges::find(server.hello.stored, id, &StoredJob::job) == server.hello.stored.end()) continue;
      stored = true;
      if (server.alive) output_.send(server.peer, DropCheckpoint{id, {}});
    }
    return !stored && output_.remove(id).has_value();
  });
}

Result<std::uint64_t> CoordinatorCore::remove_job(const std::string& name) {
  if (draining_) return fail(ErrorCode::kStopped, "the cluster is being stopped; remove jobs when it is back");
  if (options_.servers == 0) {
    return fail(ErrorCode::kTopology,
                "this cluster has no servers: what there is of job '" + name +
                    "' lies in the workers' stores, in allreduce/ below [store] path; delete it there");
  }
  const auto known = jobs_.find(name);
  std::set<JobId> ids = strangers(name);
  if (known != jobs_.end()) {
    const Job& job = known->second;
    if (job.phase != Phase::kIdle || job.restoring || save_waits(job)) {
      return fail(ErrorCode::kInvalidArgument, in_words(job) + " is in use; stop its trainers first");
    }
    if (job.record.job.value != 0) ids.insert(job.record.job);
    ids.insert(job.older.begin(), job.older.end());
  }
  if (!all_servers()) {
    return fail(ErrorCode::kUnavailable, "not all " + std::to_string(options_.servers) +
                                             " servers of the cluster are there, and what an absent one has of job '" +
                                             name + "' would stay; start them first");
  }
  if (known == jobs_.end() && ids.empty()) {
    return fail(ErrorCode::kUnknownJob, "nobody in the cluster has a job '" + name + "'");
  }
  for (const JobId id : ids) {
    if (const Status removed = output_.remove(id); !removed) return tl::unexpected(removed.error());
  }
  for (const JobId id : ids) drop_state(id);
  if (known != jobs_.end()) jobs_.erase(known);
  output_.log("job '" + name + "' is removed by order, with all that servers have of it");
  return ids.size();
}

}  // namespace tributary

// State that outlives a view: where the next view of a job begins after somebody was lost.
//
// A round r can be the beginning if every chunk can be had at r. Servers that lived through the loss have their chunks
// in memory, each at version r or r+1 for the least r: no node pushes a chunk of round r+2 before it has all of r+1. Of
// those at r+1 they have the parameters before the last step, too (ShardJob::recovers), and what nodes push of round
// r+1 again is known there. A server that was lost loads the last committed snapshot, and the nodes push again what
// they pushed since, if each of them still has it. If any of that cannot be had, the view begins at the snapshot, and
// what servers kept is dropped: the rounds since are computed again.
#include <algorithm>

#include "common/encoding.h"
#include "common/redo_plan.h"
#include "server/coordinator_core.h"
#include "server/snapshot_schedule.h"
#include "server/snapshots_asked.h"

namespace tributary {
namespace {

constexpr std::uint64_t kRedoBytesPerMs = 20'000;  // 20 MB/s

}  // namespace

std::uint64_t CoordinatorCore::redo_pause_ms(std::uint64_t bytes) {
  return bytes / kRedoBytesPerMs;
}

// Everybody who is there was told that the view is over, and says what it keeps.
void CoordinatorCore::park(Job& job) {
  job.kept.clear();
  job.parking.clear();
  if (!job.on_servers()) return;
  for (const auto& [index, server] : servers_) {
    if (server.alive) job.parking.insert(index);
  }
}

// The state that the job stopped with is not durable everywhere. It is in the servers' memory still, and the next view
// can begin with it.
void CoordinatorCore::end_unwritten(Job& job, std::uint64_t now_ms) {
  const std::string round = std::to_string(job.snapshot.value_or(Round()).value);
  // Where there is no store and nobody asked for one, a job that has come to its end has given all it was to give; one
  // that was to keep nothing has so wherever it stops.
  const bool stores = job.on_servers()
                          ? std::ranges::all_of(servers_, [](const auto& entry) { return entry.second.hello.store; })
                          : job.stop_failed;  // else node 0 has none
  const bool wanted = job.stop_kind == StopKind::kFinished ? asks_for_snapshots(job.config.snapshot)
                                                           : !declines_snapshots(job.config.snapshot);
  const bool missed = stores || wanted;
  if (missed) {
    output_.log("the state of " + in_words(job) + " at round " + round + " is not saved: " + not_saved_in_words(job),
                LogLevel::kError);
  } else {
    job.not_saved.clear();
  }
  tell_saved(job, !missed);
  if (has_rounds(job.config)) {
    send_servers(job, StopJob{job.record.job, job.record.view, StopKind::kRestart, job.record.committed,
                              "the state of round " + round + " could not be written"});
    park(job);
  }
  become_idle(job, now_ms);
}

// All-reduce: what became of the state that the view ended with, which node 0 alone keeps. It says so again until it is
// answered, and may say it before all others have left.
void CoordinatorCore::checkpointed(const Worker& worker, const SnapshotDone& m, std::uint64_t now_ms) {
  Job* const known = job_with(m.job);
  if (!known) {
    output_.send(worker.peer, StopJob{m.job, m.view, StopKind::kRestart, m.round, "nobody knows this job any more"});
    return;
  }
  Job& job = *known;
  const bool open = job.phase == Phase::kRunning || job.phase == Phase::kStopping;
  const bool keeper = open && job.record.view == m.view && !job.on_servers() &&
                      job.members.begin()->second.worker == worker.hello.incarnation;
  if (!keeper) return tell_saved_again(worker.peer, m.job, m.view, m.round);
  job.checkpoint = m;
  if (job.phase == Phase::kStopping) end_checkpointed(job, now_ms);
}

void CoordinatorCore::end_checkpointed(Job& job, std::uint64_t now_ms) {
  const SnapshotDone& kept = *job.checkpoint;
  if (!kept.ok || kept.round < *job.snapshot) {
    job.stop_failed = !kept.ok || kept.round.value != 0;
    job.not_saved = !kept.ok                ? kept.message
                    : kept.round.value == 0 ? "node 0 keeps no checkpoints; set [store] path in its worker.toml"
                                            : "node 0 stopped at round " + std::to_string(kept.round.value);
    return end_unwritten(job, now_ms);
  }
  job.not_saved.clear();
  job.record.committed = kept.round;
  job.record.finished = job.stop_kind == StopKind::kFinished;
  if (const Status saved = output_.save(job.record); !saved) {
    output_.log("cannot record the end of " + in_words(job) + ": " + saved.error().message, LogLevel::kError);
  }
  tell_saved(job, true);
  become_idle(job, now_ms);
}

// What came of the state that the job ended with: to the nodes, whose trainers wait for it.
void CoordinatorCore::tell_saved(const Job& job, bool saved) {
  send_members(job, SnapshotDone{job.record.job, job.record.view, job.snapshot.value_or(Round()), saved, 0,
                                 saved ? std::string() : not_saved_in_words(job)});
}

// The same, to a node that has not heard it and says again with which round it ended.
void CoordinatorCore::tell_saved_again(PeerId to, JobId id, ViewId view, Round round) {
  const Job* const known = job_with(id);
  if (!known) return;
  const Job& job = *known;
  if (job.record.view != view || job.stop_kind == StopKind::kRestart) {  // it was cut, or nobody knows any more
    output_.send(to, StopJob{id, view, StopKind::kRestart, job.record.committed, "the view is over"});
    return;
  }
  const bool saved = job.not_saved.empty();
  output_.send(to, SnapshotDone{id, view, round, saved, 0, saved ? std::string() : not_saved_in_words(job)});
}

// Why it is not, and what there is instead.
std::string CoordinatorCore::not_saved_in_words(const Job& job) const {
  if (!job.on_servers()) return job.not_saved;
  const std::string instead = job.record.initialised
                                  ? "the newest snapshot is that of round " + std::to_string(job.record.committed.value)
                                  : "there is no snapshot, so the job begins anew";
  const bool in_memory = has_rounds(job.config) && !draining_;
  return job.not_saved + "; " + instead +
         (in_memory ? "; while the servers run, the state stays in their memory for 10 minutes: mend the cause and "
                      "start the job again with the same command"
                    : "");
}

void CoordinatorCore::on(PeerId from, const ShardKept& m, std::uint64_t now_ms) {
  const Server* server = server_at(from);
  Job* const known = job_with(m.job);
  if (!server || !known) return;
  Job& job = *known;
  if (job.phase != Phase::kIdle && job.phase != Phase::kGathering) return;  // of a view before
  const std::uint16_t shard = server->hello.shard.value;
  job.parking.erase(shard);
  if (m.any) {
    job.kept[shard] = {m.job, m.min_version, m.max_version, false};
  } else {
    job.kept.erase(shard);
  }
  open_if_complete(job, now_ms);
}

// A server that is met (again) says what it has.
void CoordinatorCore::note_kept(const ServerHello& m, bool known) {
  for (auto& [name, job] : jobs_) {
    if (job.phase != Phase::kIdle && job.phase != Phase::kGathering) continue;
    if (!known) {
      job.kept.erase(m.shard.value);
      job.parking.erase(m.shard.value);
    }
    const auto kept = std::ranges::find(m.kept, job.record.job, &KeptJob::job);
    if (kept == m.kept.end() || job.record.job.value == 0) continue;
    if (kept->pending) {
      job.parking.insert(m.shard.value);
    } else {
      job.kept[m.shard.value] = *kept;
      job.parking.erase(m.shard.value);  // what it said of that before may not have arrived
    }
  }
}

bool CoordinatorCore::keeps_redo(const Job& job) const {
  return has_rounds(job.config) && job.redo_capacity >= kMinRedoRounds &&
         std::ranges::all_of(servers_, [](const auto& entry) { return entry.second.hello.store; });
}

// The last round after the snapshot that all nodes can push again; the snapshot's own if there is none.
std::optional<Round> CoordinatorCore::reach_of_redo(const Job& job) const {
  Round reach(~0ull);
  for (const auto& [node, member] : job.members) {
    const JoinJob& join = member.join;
    const bool some = join.redo_job == job.record.job && join.redo_last >= join.redo_first;
    if (some && join.redo_members != job.record.view_nodes.hash) return {};  // sums of other nodes' pushes
    if (some && join.redo_first.value > job.resume_round.value + 1) return {};
    if (some && job.record.view_nodes.first > job.resume_round.next()) return {};  // others' pushes would be missing
    reach = std::min(reach, some ? std::max(join.redo_last, job.resume_round) : job.resume_round);
  }
  return reach;
}

// REQUIRES: choose_snapshot(job).
void CoordinatorCore::choose_start(Job& job) {
  // Every shard had been through this round once, even if one was still being brought up to it when the view ended.
  const Round reached = job.start;
  job.start = job.resume_round;
  job.kept_open.clear();
  job.redo_capacity = ~0u;
  for (const auto& [node, member] : job.members)
    job.redo_capacity = std::min(job.redo_capacity, member.join.redo_capacity);
  const std::set<std::uint16_t> shards = shards_of(job);
  if (shards.empty() || !has_rounds(job.config)) return;
  // As the servers have it, if all of them have something and are not more than a round apart.
  Round slowest(~0ull);
  Version fastest;
  bool as_kept = true;
  for (const std::uint16_t shard : shards) {
    const auto kept = job.kept.find(shard);
    as_kept = as_kept && kept != job.kept.end();
    if (!as_kept) break;
    slowest = std::min(slowest, Round(kept->second.min_version.value));
    fastest = std::max(fastest, kept->second.max_version);
  }
  as_kept = as_kept && slowest >= job.resume_round && fastest.value <= slowest.value + 1;
  const std::optional<Round> reach = job.resume ? reach_of_redo(job) : std::nullopt;  // else a lost shard has nothing
  const bool once_more = reach && *reach >= reached;  // what was reached can be had again
  if (as_kept && residuals_at(job, slowest) && (!reach || slowest.value + 1 >= reach->value) &&
      (slowest >= reached || !once_more)) {
    job.start = slowest;
    job.kept_open = shards;
    return;
  }
  if (!reach) return;
  // As far as the nodes can push again. A server that is further behind was still being brought up to the others when
  // its view ended: it counts as lost again.
  Round start = *reach;
  for (const std::uint16_t shard : shards) {
    const auto kept = job.kept.find(shard);
    if (kept == job.kept.end() || kept->second.min_version.value + 1 < reach->value) continue;
    if (once_more && kept->second.min_version.value < reached.value) continue;
    job.kept_open.insert(shard);
    start = std::min(start, Round(kept->second.min_version.value));
  }
  std::erase_if(job.kept_open,
                [&](std::uint16_t shard) { return job.kept.at(shard).max_version.value > start.value + 1; });
  job.start = std::max(start, job.resume_round);
  if (residuals_at(job, job.start)) return;
  job.start = job.resume_round;
  job.kept_open.clear();
}

// Servers that go on with what they have in memory do not know what nodes have not said yet: every node must know it
// itself, of the round that the view begins at. (It is in snapshots.)
bool CoordinatorCore::residuals_at(const Job& job, Round round) {
  if (!make_encoding(job.config.push)->keeps_residual()) return true;
  return std::ranges::all_of(job.members, [&](const auto& entry) {
    const JoinJob& join = entry.second.join;
    return join.redo_job == job.record.job && join.redo_members == job.record.view_nodes.hash &&
           join.residual_first <= round && round <= join.residual_last;
  });
}

std::vector<Version> CoordinatorCore::redo_after(const Job& job) const {
  std::vector<Version> versions;
  if (!job.on_servers() || job.start == job.resume_round) return versions;
  // Those without chunks lack nothing.
  const std::set<std::uint16_t> shards = shards_of(job);
  for (const auto& [index, server] : servers_) {
    const bool has = job.kept_open.contains(index) || !shards.contains(index);
    versions.emplace_back(has ? job.start.value : job.resume_round.value);
  }
  return versions;
}

std::string CoordinatorCore::beginning_in_words(const Job& job) const {
  const std::string round = std::to_string(job.start.value);
  if (job.kept_open.empty() && !job.resume) return "fresh";
  const std::string snapshot = "the snapshot of round " + std::to_string(job.resume_round.value);
  if (job.start == job.resume_round && job.kept_open.empty()) return "from " + snapshot;
  const std::size_t lost = shards_of(job).size() - job.kept_open.size();
  if (lost == 0) return "at round " + round + ", as the servers have it";
  return "at round " + round + ": " + std::to_string(lost) + " of " + std::to_string(shards_of(job).size()) +
         " servers load " + snapshot + ", and the nodes push again what came after it";
}

// Nodes keep the pushes of redo_capacity rounds, so a snapshot is wanted half of that after the last one. It is named
// as far ahead as any (where rounds are short that is much of a ring, so at once), and writing must not cost much: on
// average kRedoBytesPerMs of each shard.
bool CoordinatorCore::redo_wants_snapshot(const Job& job, const SnapshotNeeds& needs, std::uint64_t now_ms) const {
  if (!keeps_redo(job) || job.pace.empty() || !needs.next || job.stop_requested) return false;
  for (const auto& [shard, pace] : job.pace) {
    if (pace.min_version.value <= job.start.value && pace.min_version.value <= job.record.committed.value) return false;
  }
  // Rings are of no use before there is a snapshot to load.
  const std::uint64_t wanted = job.record.initialised ? job.record.committed.value + job.redo_capacity / 2 : 0;
  return *needs.next >= wanted && now_ms >= job.redo_due_ms;
}

}  // namespace tributary

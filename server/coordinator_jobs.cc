// The life of a view in the coordinator once it runs: snapshots, nodes that leave, stops. Its beginning is in
// coordinator_open.cc.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/job_optimizer.h"
#include "server/coordinator_core.h"
#include "server/snapshot_schedule.h"

namespace tributary {
namespace {

// A snapshot may take as long as servers that have yet to write their part say so with every heartbeat: that they
// write, or, of a final one, that they still have the job. One that says so no more (what it was told, or its answer,
// was lost) is waited for so long.
constexpr std::uint64_t kWritingPatienceMs = 60'000;
// Nodes that have not finished where others have, and take no answers any more: their ranks may evaluate before they
// say that they are done.
constexpr std::uint64_t kLagPatienceMs = 600'000;
// How long after a refused or missed snapshot the next one is tried; longer each time, up to kMaxSnapshotLeadFactor
// times as long.
constexpr std::uint64_t kSnapshotRetryMs = 1'000;
constexpr std::uint64_t kRecordRetryMs = 1'000;  // a record that could not be saved
// A snapshot round is named this far ahead of the fastest shard, so that the message is there before the round is.
constexpr double kSnapshotLeadMs = 300.0;
constexpr std::uint64_t kMaxSnapshotLeadFactor = 32;
// After so long one whose round is still far gives way to a nearer one. (A job that stands still for a moment looks as
// if every round were far.)
constexpr std::uint64_t kSnapshotFarMs = 5'000;
// About what a lane gets of memory for the steps after the capture (server/pool_preparer.h) in a millisecond: an eighth
// of what one core does, as training keeps most of them. Where it is less, shards are waited for, so long at most.
constexpr std::uint64_t kPreparedBytesPerMs = 125'000;
constexpr std::uint64_t kPreparePatienceMs = 30'000;
constexpr double kMaxRound = 1e18;  // what a shard may claim to have reached

}  // namespace

void CoordinatorCore::set_phase(Job& job, Phase phase, std::uint64_t now_ms) {
  job.phase = phase;
  job.phase_since_ms = now_ms;
}

CoordinatorCore::Job* CoordinatorCore::job_with(JobId id) {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& entry) { return entry.second.record.job == id; });
  return it == jobs_.end() ? nullptr : &it->second;
}

CoordinatorCore::Job* CoordinatorCore::job_in_view(JobId id, ViewId view) {
  Job* job = job_with(id);
  const bool open = job && job->phase != Phase::kIdle && job->phase != Phase::kGathering;
  return open && job->record.view == view ? job : nullptr;
}

void CoordinatorCore::send_members(const Job& job, const ControlMessage& message) {
  for (const auto& [node, member] : job.members) {
    const auto worker = workers_.find(member.worker);
    if (worker != workers_.end()) output_.send(worker->second.peer, message);
  }
}

void CoordinatorCore::send_servers(const Job& job, const ControlMessage& message) {
  if (!job.on_servers()) return;
  for (const auto& [index, server] : servers_) {
    if (server.alive) output_.send(server.peer, message);
  }
}

// Shards that own chunks of the job: a model smaller than the cluster leaves some without, all-reduce all.
std::set<std::uint16_t> CoordinatorCore::shards_of(const Job& job) const {
  std::set<std::uint16_t> shards;
  if (!job.on_servers()) return shards;
  for (const ChunkOwner& owner : job.record.owners) shards.insert(owner.shard.value);
  return shards;
}

void CoordinatorCore::on(PeerId from, const LeaveJob& m, std::uint64_t now_ms) {
  const Worker* worker = worker_at(from);
  if (!worker) return;  // given up already, and the job has been told
  // Before JobWelcome the worker knows neither id nor view (both are 0), only the job's name.
  const auto found = std::ranges::find_if(jobs_, [&](const auto& entry) {
    const auto& [name, candidate] = entry;
    const auto at = candidate.members.find(m.node.value);
    if (at == candidate.members.end() || at->second.worker != worker->hello.incarnation) return false;
    return m.job.value == 0 ? name == m.name : candidate.record.job == m.job && candidate.record.view == m.view;
  });
  const auto again = [&] {
    if (m.job.value != 0 && m.kind != LeaveKind::kFailed) tell_saved_again(worker->peer, m.job, m.view, m.round);
  };
  if (found == jobs_.end()) return again();
  Job* job = &found->second;
  // Of the view that is over: its trainers still wait to hear what came of it, while others have come for the next one.
  if (job->phase == Phase::kGathering && m.job.value != 0 && m.kind != LeaveKind::kFailed) return again();
  Member& member = job->members.at(m.node.value);
  if (member.left) return;  // said again, because the answer takes its time
  const std::string who = "node " + std::to_string(m.node.value);
  // Whoever leaves before it began has contributed nothing, and fails the others if they began meanwhile.
  if (job->phase == Phase::kGathering || job->phase == Phase::kOpening || m.kind == LeaveKind::kFailed ||
      m.job.value == 0) {
    return lose_member(*job, m.node.value, who + " failed: " + (m.message.empty() ? "no reason given" : m.message),
                       now_ms);
  }
  if (job->phase == Phase::kStopping) {
    member.left = m;
    return await_longer(*job);
  }
  if (job->phase != Phase::kRunning) return;
  if (m.kind == LeaveKind::kStopped && member.leaving && goes_on_without(*job, m.node.value)) {
    output_.send(worker->peer, StopJob{m.job, m.view, StopKind::kStopped, m.round, who + " was stopped"});
    output_.send(worker->peer, SnapshotDone{m.job, m.view, m.round, true, 0, {}});  // the others have it
    restart(*job, who + " left after round " + std::to_string(m.round.value), now_ms);
    job->expected.erase(m.node.value);
    return;
  }
  member.left = m;
  if (m.kind == LeaveKind::kStopped) {
    // This node has every answer of round m.round and pushes no more: no chunk anywhere can go past it, so all are
    // there. (Nodes with clocks of their own are anywhere.)
    return begin_stop(*job, StopKind::kStopped, stop_round(*job, m.round),
                      job->stop_requested ? job->last_stop
                      : m.message.empty() ? who + " was stopped"
                                          : m.message,
                      now_ms);
  }
  const bool all_left =
      std::ranges::all_of(job->members, [](const auto& entry) { return entry.second.left.has_value(); });
  if (all_left) begin_stop(*job, StopKind::kFinished, m.round, "training is complete", now_ms);
}

// What a node has for the others to connect to it.
void CoordinatorCore::on(PeerId from, const PeerAddress& m, std::uint64_t) {
  const Worker* worker = worker_at(from);
  Job* job = job_in_view(m.job, m.view);
  if (!worker || !job || job->on_servers() || job->phase != Phase::kRunning) return;  // of a view that is over
  const auto author = job->members.find(m.node.value);
  if (author == job->members.end() || author->second.worker != worker->hello.incarnation) {
    return refuse(from, ErrorCode::kInvalidArgument,
                  "worker " + worker->hello.name + " is not node " + std::to_string(m.node.value) + " of " +
                      in_words(*job) + " and has no address to give for it");
  }
  if (++author->second.addresses > kMaxPeerAddresses) {
    if (author->second.addresses > kMaxPeerAddresses + 1) return;  // said once
    return refuse(from, ErrorCode::kLimit,
                  "node " + std::to_string(m.node.value) + " of " + in_words(*job) + " gave more than " +
                      std::to_string(kMaxPeerAddresses) + " addresses in one view");
  }
  for (const auto& [node, member] : job->members) {
    const auto other = workers_.find(member.worker);
    if (node != m.node.value && other != workers_.end()) output_.send(other->second.peer, m);
  }
}

// The round that a stop is known by, when a node has left after `left` and has all answers of it: with synchronous
// rounds no chunk is before that. In modes of bounded staleness `left` is the count of that node alone, and the others
// stop wherever they are: the round is one that all of them are known to have passed on all chunks. The state that is
// kept says for each chunk which pushes beyond that it has, and they are not applied again when the job goes on.
// (Heartbeats tell of the past: a snapshot may have been committed since, of a round that all have passed, too.)
Round CoordinatorCore::stop_round(const Job& job, Round left) const {
  if (!has_clocks(job.config)) return left;
  Round passed = left;
  for (const std::uint16_t shard : shards_of(job)) {
    const auto pace = job.pace.find(shard);
    passed = std::min(passed, pace == job.pace.end() ? Round(0) : Round(pace->second.min_version.value));
  }
  return std::max({passed, job.resume_round, job.record.committed});
}

void CoordinatorCore::request_stop(Job& job, const std::string& reason) {
  if (job.stop_requested) return;
  job.stop_requested = true;
  job.last_stop = reason;
  output_.log(in_words(job) + " is asked to stop after its round: " + reason);
  send_members(job, StopRequest{job.record.job, job.record.view, reason});
}

// The round that the view under way ends with.
StopJob CoordinatorCore::stop_message(const Job& job) {
  return {job.record.job, job.record.view, job.stop_kind, job.snapshot.value_or(Round()), job.last_stop};
}

// The view has ended in the middle of a round.
StopJob CoordinatorCore::cut_message(const Job& job) {
  return {job.record.job, job.record.view, StopKind::kRestart, job.record.committed, job.last_stop};
}

// A server hears nothing of a node that still takes answers of the others, and waits for what it keeps all the same.
void CoordinatorCore::await_longer(const Job& job) {
  send_servers(job, stop_message(job));
}

void CoordinatorCore::begin_stop(Job& job, StopKind kind, Round round, const std::string& reason,
                                 std::uint64_t now_ms) {
  job.stop_kind = kind;
  job.stop_failed = false;
  job.last_stop = job.record.last_stop = reason;
  job.snapshot = round;
  job.snapshot_bytes = 0;
  job.snapshot_done.clear();
  await_nobody(job);
  set_phase(job, Phase::kStopping, now_ms);
  output_.log(in_words(job) + " stops at round " + std::to_string(round.value) + ": " + reason);
  send_servers(job, stop_message(job));
  send_members(job, stop_message(job));
  if (job.on_servers()) return;
  // Node 0 alone keeps the state, and says when it is written. It may have, or be gone.
  const auto& [node, keeper] = *job.members.begin();
  if (job.checkpoint) return end_checkpointed(job, now_ms);
  if (!workers_.contains(keeper.worker)) lose_member(job, node, "node " + std::to_string(node) + " is lost", now_ms);
}

void CoordinatorCore::restart(Job& job, const std::string& reason, std::uint64_t now_ms) {
  job.last_stop = reason;
  const std::string outlook = !job.on_servers() ? "it can go on from the newest checkpoint that node 0 has"
                              : job.record.initialised
                                  ? "its last snapshot is that of round " + std::to_string(job.record.committed.value)
                                  : "it has no snapshot yet";
  output_.log(in_words(job) + " leaves view " + std::to_string(job.record.view.value) + ": " + reason + "; " + outlook,
              LogLevel::kWarning);
  if (job.phase == Phase::kStopping) job.not_saved = reason;
  job.stop_kind = StopKind::kRestart;
  send_servers(job, cut_message(job));
  send_members(job, cut_message(job));
  park(job);
  await_again(job, now_ms);
  become_idle(job, now_ms);
}

void CoordinatorCore::become_idle(Job& job, std::uint64_t now_ms) {
  fail_checkpoints_of(job, job.last_stop, now_ms);
  job.members.clear();
  job.ready.clear();
  job.lagging.reset();
  job.snapshot.reset();
  job.snapshot_done.clear();
  job.preparing_since_ms.reset();
  job.stop_requested = false;
  job.joins_after.reset();
  set_phase(job, Phase::kIdle, now_ms);
}

void CoordinatorCore::on(PeerId from, const SnapshotDone& m, std::uint64_t now_ms) {
  if (const Worker* worker = worker_at(from)) return checkpointed(*worker, m, now_ms);
  Server* server = server_at(from);
  Job* const known = job_with(m.job);
  if (!server || !known) return;
  Job& job = *known;
  // The view may have ended meanwhile: what it has made durable is as good to go on from. Of older views nothing is
  // taken, the rounds may have been gone through again since.
  if (job.record.view != m.view) return;
  if (m.ok) {
    auto& stored = server->hello.stored;
    auto entry = std::ranges::find(stored, m.job, &StoredJob::job);
    if (entry == stored.end()) entry = stored.insert(stored.end(), StoredJob{m.job, job.config.name, 0, {}});
    if (std::ranges::find(entry->snapshots, m.round) == entry->snapshots.end()) entry->snapshots.push_back(m.round);
  }
  const std::uint16_t shard = server->hello.shard.value;
  const std::set<std::uint16_t> needed = shards_of(job);
  if (job.snapshot != m.round || !needed.contains(shard)) return;
  if (!m.ok) {
    // Who has no store says so itself, by name.
    const std::string who = "server " + std::to_string(shard);
    job.not_saved = m.message.starts_with(who) ? m.message : who + ": " + m.message;
    output_.log(
        "snapshot of round " + std::to_string(m.round.value) + " of " + in_words(job) + " failed: " + job.not_saved,
        LogLevel::kWarning);
    if (job.phase == Phase::kRunning) return miss_snapshot(job, now_ms);
    job.stop_failed = true;
  }
  job.snapshot_done.insert(shard);
  job.snapshot_bytes = std::max(job.snapshot_bytes, m.bytes);
  if (!std::ranges::includes(job.snapshot_done, needed)) return;
  if (!job.stop_failed) {
    commit(job, m.round, now_ms);
    write_checkpoints(job, m.round, now_ms);
  }
  if (job.phase == Phase::kStopping) {
    if (job.unrecorded) {
      job.not_saved = "server 0 cannot record the snapshot, and tries again while it runs";
      job.stop_failed = true;
    }
    if (job.stop_failed) return end_unwritten(job, now_ms);
    tell_saved(job, true);
    become_idle(job, now_ms);
  } else {
    job.snapshot.reset();
    job.missed_snapshots = 0;
    job.snapshot_due_ms = snapshot_due(job, now_ms);
    job.redo_due_ms = now_ms + redo_pause_ms(job.snapshot_bytes);
  }
}

// When the next snapshot is due by the job's own configuration.
std::uint64_t CoordinatorCore::snapshot_due(const Job& job, std::uint64_t now_ms) {
  const SnapshotConfig& config = job.config.snapshot;
  if (!job.on_servers() || (config.every_s == 0 && config.every_rounds == 0)) return kNever;
  return now_ms + config.every_s * 1000ull;
}

void CoordinatorCore::commit(Job& job, Round round, std::uint64_t now_ms) {
  commit_rank_states(job, round);
  job.not_saved.clear();
  job.record.committed = round;
  job.record.initialised = true;
  job.record.finished = job.phase == Phase::kStopping && job.stop_kind == StopKind::kFinished;
  job.untold = true;
  record_job(job, now_ms);
}

// Until the record is saved nothing that came before its snapshot may be dropped. (The snapshots themselves are
// durable: choose_snapshot() finds them after a restart.)
void CoordinatorCore::record_job(Job& job, std::uint64_t now_ms) {
  const Status saved = output_.save(job.record);
  job.unrecorded = !saved;
  job.record_due_ms = now_ms + kRecordRetryMs;
  if (saved ? job.record_failed : !job.record_failed) {
    output_.log(saved ? "the record of " + in_words(job) + " is saved again"
                      : "cannot record the snapshot of round " + std::to_string(job.record.committed.value) + " of " +
                            in_words(job) + ", and tries again: " + saved.error().message,
                saved ? LogLevel::kInfo : LogLevel::kError);
  }
  job.record_failed = !saved;
  if (!saved || !std::exchange(job.untold, false)) return;
  const Round round = job.record.committed;
  for (auto& [index, server] : servers_) {
    for (StoredJob& stored : server.hello.stored) {
      if (stored.job == job.record.job) std::erase_if(stored.snapshots, [&](Round r) { return r < round; });
    }
  }
  send_servers(job, SnapshotCommit{job.record.job, round});
  send_members(job, SnapshotCommit{job.record.job, round});
}

void CoordinatorCore::tick_job(Job& job, std::uint64_t now_ms) {
  if (job.unrecorded && now_ms >= job.record_due_ms) record_job(job, now_ms);
  if (job.phase == Phase::kStopping && silent(job, &Pace::said_ms, job.phase_since_ms, now_ms)) {
    if (job.not_saved.empty()) job.not_saved = "servers did not write it in time";
    return end_unwritten(job, now_ms);
  }
  if (job.phase == Phase::kGathering) open_if_complete(job, now_ms);  // no longer with whoever is still missing
  if (job.phase != Phase::kRunning) return;
  const auto finished =
      std::ranges::find_if(job.members, [](const auto& entry) { return entry.second.left.has_value(); });
  if (finished != job.members.end()) {
    // Finished nodes push no more: the others either finish now or wait for ever. (If all had, the stop would have
    // begun.)
    std::uint64_t answers = 0;
    for (const auto& [node, member] : job.members) answers += member.answers;
    if (!job.lagging) job.lagging.emplace(kLagPatienceMs, now_ms);
    if (job.lagging->over(answers, now_ms)) {
      begin_stop(job, StopKind::kStopped, stop_round(job, finished->second.left->round),
                 "some nodes finished, others did not follow", now_ms);
    }
    return;
  }
  if (job.snapshot && silent(job, &Pace::wrote_ms, job.snapshot_named_ms, now_ms)) {
    job.not_saved = "servers did not write it in time";
    output_.log("snapshot of round " + std::to_string(job.snapshot->value) + " of " + in_words(job) +
                    " did not come in time; another one is tried",
                LogLevel::kWarning);
    miss_snapshot(job, now_ms);
  }
  if (now_ms >= job.snapshot_retry_ms) name_snapshot(job, now_ms);
}

// Has one of the servers whose part of the snapshot is missing given no sign of it for too long? Asked at every tick:
// nobody is looked for before `since_ms` is as long ago.
bool CoordinatorCore::silent(const Job& job, std::uint64_t Pace::*sign, std::uint64_t since_ms,
                             std::uint64_t now_ms) const {
  if (now_ms <= since_ms + kWritingPatienceMs) return false;
  return std::ranges::any_of(shards_of(job), [&](std::uint16_t shard) {
    if (job.snapshot_done.contains(shard)) return false;
    const auto pace = job.pace.find(shard);
    return now_ms > (pace == job.pace.end() ? 0 : pace->second.*sign) + kWritingPatienceMs;
  });
}

void CoordinatorCore::miss_snapshot(Job& job, std::uint64_t now_ms) {
  job.snapshot.reset();
  ++job.missed_snapshots;
  job.snapshot_retry_ms = now_ms + kSnapshotRetryMs * std::min(job.missed_snapshots, kMaxSnapshotLeadFactor);
  if (job.snapshot_due_ms != kNever) job.snapshot_due_ms = job.snapshot_retry_ms;
}

// As much as the state of the largest shard: every buffer is written anew after a capture.
std::uint64_t CoordinatorCore::prepare_bytes(const Job& job) {
  std::map<std::uint16_t, std::uint64_t> chunks;
  std::uint64_t largest = 0;
  for (const ChunkOwner& owner : job.record.owners) largest = std::max(largest, ++chunks[owner.shard.value]);
  const auto optimizer = make_optimizer(job.config.optimizer);
  const std::uint64_t arrays = 1 + static_cast<std::uint64_t>(optimizer ? optimizer->slots() : 0);
  return largest * job.record.chunk_elements * sizeof(float) * arrays;
}

// Do shards get memory before a snapshot is named?
bool CoordinatorCore::prepares(const Job& job) const {
  return job.prepare_bytes >= options_.prepare_from_bytes;
}

// Have they got it? Asks them to, the first time.
bool CoordinatorCore::has_memory(Job& job, std::uint64_t now_ms) {
  if (!prepares(job)) return true;
  if (!job.preparing_since_ms) {
    job.preparing_since_ms = now_ms;
    job.prepared.clear();
    send_servers(job, PrepareSnapshot{job.record.job, job.record.view});
    return false;
  }
  return now_ms >= *job.preparing_since_ms + kPreparePatienceMs || std::ranges::includes(job.prepared, shards_of(job));
}

// The next round that a snapshot can be named for; none if that is not known, or nothing has been trained yet.
std::optional<std::uint64_t> CoordinatorCore::next_to_name(const Job& job, std::uint64_t now_ms) const {
  const bool asked = job.preparing_since_ms || !prepares(job);
  const double ahead_ms = kSnapshotLeadMs + static_cast<double>(asked ? 0 : job.prepare_bytes / kPreparedBytesPerMs);
  double reach = 0.0;
  for (const auto& [shard, pace] : job.pace) {
    if (!pace.measured || pace.at_ms == 0) return std::nullopt;  // a guess would be passed before it arrives
    const double age = static_cast<double>(now_ms - pace.at_ms);
    const double lead =
        (age + ahead_ms) * static_cast<double>(std::min(job.missed_snapshots + 1, kMaxSnapshotLeadFactor));
    reach = std::max(reach, static_cast<double>(pace.max_version.value) + pace.rounds_per_ms * lead);
  }
  if (reach == 0.0) return std::nullopt;
  // Of rounds that nodes push again there are no residuals any more, and a node is through with them at any moment.
  reach = std::max(reach, static_cast<double>(job.start.value));
  return static_cast<std::uint64_t>(std::ceil(std::min(reach, kMaxRound))) + 2;
}

// Names a snapshot if somebody needs one, in place of one under way that nobody is near.
void CoordinatorCore::name_snapshot(Job& job, std::uint64_t now_ms) {
  if (!job.snapshot_done.empty() && job.snapshot) return;  // a shard is through with that already
  SnapshotNeeds needs;
  for (const auto& [shard, pace] : job.pace) needs.fastest = std::max(needs.fastest, pace.max_version.value);
  needs.next = next_to_name(job, now_ms);
  needs.due = now_ms >= job.snapshot_due_ms && !job.stop_requested;
  needs.every_rounds = job.config.snapshot.every_rounds;
  const bool joins = job.joins_after && job.record.committed <= *job.joins_after;
  needs.awaited = (joins || save_waits(job)) && !job.stop_requested;
  needs.redo = redo_wants_snapshot(job, needs, now_ms);
  const std::optional<NamedSnapshot> named = snapshot_to_name(needs);
  if (!named) return;
  if (job.snapshot && (now_ms < job.snapshot_named_ms + kSnapshotFarMs ||
                       !gives_way(job.snapshot->value, named->round, needs.fastest))) {
    return;
  }
  if (!has_memory(job, now_ms)) return;
  if (job.snapshot) {
    output_.log("snapshot of round " + std::to_string(job.snapshot->value) + " of " + in_words(job) +
                ", which is far, gives way to one of round " + std::to_string(named->round) + " for " + named->why);
  }
  announce_snapshot(job, Round(named->round), now_ms);
}

void CoordinatorCore::announce_snapshot(Job& job, Round round, std::uint64_t now_ms) {
  job.snapshot = round;
  job.snapshot_named_ms = now_ms;
  job.snapshot_done.clear();
  job.preparing_since_ms.reset();
  job.stop_failed = false;
  const SnapshotAt at{job.record.job, job.record.view, round};
  send_servers(job, at);
  send_members(job, at);
}

}  // namespace tributary

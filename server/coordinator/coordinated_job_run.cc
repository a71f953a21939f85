// A job's view while it runs: how far its nodes and shards are, its snapshots, and what nodes have for each other.
#include <algorithm>
#include <utility>

#include "common/wire/redo_plan.h"
#include "server/coordinator/coordinated_job.h"

namespace tributary {
namespace {

// Nodes that have not finished where others have, and take no answers any more: their ranks may evaluate before they
// say that they are done.
constexpr std::uint64_t kLagPatienceMs = 600'000;
constexpr std::uint64_t kRedoBytesPerMs = 20'000;  // 20 MB/s
constexpr const char* kNotInTime = "servers did not write it in time";

// Nodes keep the pushes of redo_capacity() rounds, so a snapshot is wanted half of that after the last one. It is named
// as far ahead as any (where rounds are short that is much of a ring, so at once), and writing must not cost much: on
// average kRedoBytesPerMs of each shard. None: not before all shards are beyond where they began.
std::optional<std::uint64_t> redo_snapshot_from(const JobView& view, const JobRecord& record, const JobPaces& paces) {
  if (paces.empty() || !paces.all_beyond(std::min(view.start.round, record.committed))) return std::nullopt;
  // Rings are of no use before there is a snapshot to load.
  return record.initialised ? record.committed.value + redo_capacity(view.members) / 2 : 0;
}

}  // namespace

void CoordinatedJob::on(PeerId from, const RoundFacts& m) {
  JobView* open = view();
  if (!open || !open->gate) return;
  const Result<RoundGate::Reply> reply = open->gate->on_facts(m);
  if (!reply) return context_.refuse(from, reply.error(), config_.name);
  if (!reply->decision) return;
  if (reply->for_all) {
    send_servers(*reply->decision);
  } else if (!m.decided.known()) {
    context_.output.send(from, *reply->decision);
  }
}

// Who lags is told when it begins and when it is over.
void CoordinatedJob::on(const Peers::Worker& worker, const NodePace& pace) {
  if (!trains()) return;
  JobMembers& members = view()->members;
  const auto member = members.find(pace.node.value);
  if (member == members.end() || member->second.worker != worker.hello.incarnation) return;
  const bool gets_on = std::exchange(member->second.answers, pace.answers) != pace.answers;
  phase::Running* running = std::get_if<phase::Running>(&phase_);
  if (!running) {
    // Servers hear nothing of a node that still takes answers of the others, and wait for what it keeps all the same.
    if (gets_on) send_servers(stop_message());
    return;
  }
  const auto news = running->stragglers.note(pace);
  if (!news) return;
  context_.output.log("node " + std::to_string(news->node) + " of " + in_words() + " (worker " + worker.hello.name +
                          ") " + (news->lag ? tributary::in_words(*news->lag) : "has caught up with the others"),
                      news->lag ? LogLevel::kWarning : LogLevel::kInfo);
}

void CoordinatedJob::on_progress(std::uint32_t maker, const JobProgress& progress, std::uint64_t now_ms) {
  phase::Running* running = std::get_if<phase::Running>(&phase_);
  if (running && servers() != 0 && progress.prepared) running->snapshots.has_memory(static_cast<std::uint16_t>(maker));
  paces_.note(maker, view()->start.round, progress, now_ms);
}

// What a node has for the others to connect to it.
void CoordinatedJob::on(const Peers::Worker& worker, const PeerAddress& m) {
  if (servers() != 0 || !running()) return;  // of a view that is over
  JobMembers& members = view()->members;
  const auto author = members.find(m.node.value);
  const std::string who = "node " + std::to_string(m.node.value) + " of " + in_words();
  if (author == members.end() || author->second.worker != worker.hello.incarnation) {
    return context_.refuse(worker.peer, {ErrorCode::kInvalidArgument, "worker " + worker.hello.name + " is not " + who +
                                                                          " and has no address to give for it"});
  }
  if (++author->second.addresses > kMaxPeerAddresses) {
    if (author->second.addresses > kMaxPeerAddresses + 1) return;  // said once
    return context_.refuse(
        worker.peer,
        {ErrorCode::kLimit, who + " gave more than " + std::to_string(kMaxPeerAddresses) + " addresses in one view"});
  }
  for (const auto& [node, member] : members) {
    if (node != m.node.value) context_.send_worker(member.worker, m);
  }
}

// ---- Snapshots ----

// The view may have ended meanwhile: what a server has made durable is as good to go on from. Of older views nothing is
// taken, the rounds may have been gone through again since.
void CoordinatedJob::on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms) {
  if (record().view != m.view) return;
  if (m.ok) context_.peers.add_snapshot(server, m.job, config_.name, m.round);
  const std::set<std::uint16_t> parts = shards();
  phase::Running* running = std::get_if<phase::Running>(&phase_);
  phase::Stopping* stopping = std::get_if<phase::Stopping>(&phase_);
  const bool awaited = running ? running->snapshots.under_way() == m.round : stopping && stopping->round == m.round;
  if (!awaited || !parts.contains(server)) return;
  if (!m.ok) {
    // Who has no store says so itself, by name.
    const std::string who = "server " + std::to_string(server);
    not_saved_ = m.message.starts_with(who) ? m.message : who + ": " + m.message;
    context_.output.log(
        "snapshot of round " + std::to_string(m.round.value) + " of " + in_words() + " failed: " + not_saved_,
        LogLevel::kWarning);
    if (running) return running->snapshots.missed(now_ms);
    stopping->failed = true;
  }
  if (running) {
    if (!running->snapshots.wrote(server, m.bytes, parts)) return;
    const std::uint64_t bytes = running->snapshots.committed(now_ms);
    redo_due_ms_ = now_ms + bytes / kRedoBytesPerMs;
    return commit(m.round, false, now_ms);
  }
  stopping->done.insert(server);
  if (!std::ranges::includes(stopping->done, parts)) return;
  if (!stopping->failed) {
    commit(m.round, stopping->kind == StopKind::kFinished, now_ms);
    if (!keeper_.saved()) {
      not_saved_ = "server 0 cannot record the snapshot, and tries again while it runs";
      stopping->failed = true;
    }
  }
  if (stopping->failed) return end_unsaved(now_ms);
  tell_saved(true);
  become_idle({}, now_ms);
}

void CoordinatedJob::commit(Round round, bool finished, std::uint64_t now_ms) {
  not_saved_.clear();
  if (keeper_.commit(round, finished, now_ms)) tell_commit();
  context_.checkpoints.write(config_.name, record(), nodes_, shards(), now_ms);
}

void CoordinatedJob::tell_commit() {
  send_servers(SnapshotCommit{record().job, record().committed});
  send_members(SnapshotCommit{record().job, record().committed});
}

void CoordinatedJob::on(const Peers::Worker& worker, const NodeRankState& m) {
  if (servers() != 0) keeper_.keep(worker.hello.incarnation, m);
}

void CoordinatedJob::tick(std::uint64_t now_ms) {
  if (keeper_.tick(now_ms)) tell_commit();
  if (phase::Running* running = std::get_if<phase::Running>(&phase_)) return tick(*running, now_ms);
  const phase::Stopping* stopping = std::get_if<phase::Stopping>(&phase_);
  // A final snapshot may take as long as servers that have yet to write their part say with every heartbeat that they
  // still have the job. One that says so no more (what it was told, or its answer, was lost) is waited for so long.
  if (!stopping || now_ms <= stopping->since_ms + kWritingPatienceMs ||
      !paces_.silent(shards(), stopping->done, JobPaces::Sign::kHasJob, kWritingPatienceMs, now_ms)) {
    return;
  }
  if (not_saved_.empty()) not_saved_ = kNotInTime;
  end_unsaved(now_ms);
}

void CoordinatedJob::tick(phase::Running& running, std::uint64_t now_ms) {
  if (const JobMember* finished = one_that_left(members())) {
    // Finished nodes push no more: the others either finish now or wait for ever. (If all had, the stop would have
    // begun.)
    std::uint64_t answers = 0;
    for (const auto& [node, member] : members()) answers += member.answers;
    if (!running.lagging) running.lagging.emplace(kLagPatienceMs, now_ms);
    if (running.lagging->over(answers, now_ms)) {
      begin_stop(StopKind::kStopped, stop_round(finished->left->round), "some nodes finished, others did not follow",
                 now_ms);
    }
    return;
  }
  if (servers() == 0) return;
  SnapshotSchedule& snapshots = running.snapshots;
  const std::set<std::uint16_t> parts = shards();
  if (snapshots.overdue(paces_, parts, now_ms)) {
    not_saved_ = kNotInTime;
    context_.output.log("snapshot of round " + std::to_string(snapshots.under_way()->value) + " of " + in_words() +
                            " did not come in time; another one is tried",
                        LogLevel::kWarning);
    snapshots.missed(now_ms);
  }
  if (running.stop_requested) return;
  SnapshotSchedule::Wishes wishes;
  wishes.awaited = (running.joins_after && record().committed <= *running.joins_after) ||
                   context_.checkpoints.awaits_snapshot(config_.name);
  if (now_ms >= redo_due_ms_ && keeps_redo(config_, members(), context_.peers)) {
    wishes.redo_from = redo_snapshot_from(running.view, record(), paces_);
  }
  const SnapshotSchedule::Step step = snapshots.step(paces_, running.view.start.round, parts, wishes, now_ms);
  if (step.prepare) send_servers(PrepareSnapshot{record().job, record().view});
  if (!step.named) return;
  const Round round = *snapshots.under_way();
  if (step.gave_way) {
    context_.output.log("snapshot of round " + std::to_string(step.gave_way->value) + " of " + in_words() +
                        ", which is far, gives way to one of round " + std::to_string(round.value) + " for " +
                        step.named);
  }
  send_servers(SnapshotAt{record().job, record().view, round});
  send_members(SnapshotAt{record().job, record().view, round});
}

}  // namespace tributary

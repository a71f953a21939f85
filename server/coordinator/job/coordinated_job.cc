#include "server/coordinator/job/coordinated_job.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/quantity.h"
#include "server/coordinator/job/view_messages.h"

namespace tributary {

const JobMembers& CoordinatedJob::members() const {
  static const JobMembers kNone;
  if (const JobView* open = view()) return open->members;
  const GatheringJob* gathering = std::get_if<GatheringJob>(&phase_);
  return gathering ? gathering->members : kNone;
}

const BetweenViews* CoordinatedJob::between() const {
  if (const IdleJob* idle = std::get_if<IdleJob>(&phase_)) return &idle->between;
  const GatheringJob* gathering = std::get_if<GatheringJob>(&phase_);
  return gathering ? &gathering->between : nullptr;
}

BetweenViews* CoordinatedJob::between() {
  return const_cast<BetweenViews*>(std::as_const(*this).between());
}

JobView* CoordinatedJob::view() {
  if (OpeningView* opening = std::get_if<OpeningView>(&phase_)) return &opening->view;
  if (RunningView* running = std::get_if<RunningView>(&phase_)) return &running->view;
  StoppingView* stopping = std::get_if<StoppingView>(&phase_);
  return stopping ? &stopping->view : nullptr;
}

bool CoordinatedJob::takes_snapshot() const {
  const RunningView* running = std::get_if<RunningView>(&phase_);
  return stopping() || (running && running->snapshot());
}

bool CoordinatedJob::kept_by_servers() const {
  return between() && !between()->kept.empty();
}

bool CoordinatedJob::never_opened() const {
  return ids().empty() && members().empty() && !kept_by_servers() && !loading();
}

JobStatus CoordinatedJob::status() const {
  static constexpr const char* kNames[] = {"idle", "gathering", "opening", "running", "stopping"};
  JobStatus status;
  status.record = record();  // without what grows with the model: whoever watches asks often
  status.chunks = record().owners.size();
  status.name = config().name;
  status.mode = word(config().mode);
  status.recorded = !ledger_.keeper.failing();
  status.phase = kNames[phase_.index()];
  status.nodes = ledger_.nodes;
  status.joined = static_cast<std::uint32_t>(members().size());
  status.last_stop = ledger_.last_stop;
  status.checkpoint = ledger_.checkpoints.newest();
  status.no_checkpoint = ledger_.checkpoints.failure();
  status.not_saved = ledger_.not_saved;
  if (servers() != 0 && record().initialised) {
    const SnapshotCopies::Snapshot newest = ledger_.snapshot(record().committed);
    status.copies = ledger_.copies.count(newest);
    status.not_copied = ledger_.copies.missing(config().snapshot, newest);
  }
  status.placement = ledger_.placement;
  status.figures = ledger_.figures.together();
  status.waiting_for = waiting_for();
  if (dealt()) {
    status.deal = std::get<IdleJob>(phase_).loading->what;
  } else if (!loading() && ledger_.placed.ordered()) {
    const std::string& failure = ledger_.placed.last_failure();
    status.deal = "ordered; " + (failure.empty() ? "it waits for a snapshot" : "tried, and again soon: " + failure);
  }
  if (const RunningView* running = std::get_if<RunningView>(&phase_)) {
    status.paces = running->paces();
    status.stall = running->stall();
    status.snapshot = running->snapshot();
    status.snapshot_waits = running->snapshot_waits();
    for (const auto& [node, member] : members()) {
      JobStatus::Member& shown = status.members[node];
      shown.worker = ledger_.context.peers.name_of(member.worker);
      if (!member.said.empty()) shown.given = std::ranges::min(member.said);
    }
  }
  // Without an open view, the committed round counts as the version of all chunks.
  const Version kept(record().committed.value);
  std::tie(status.min_version, status.max_version) = in_view() ? ledger_.paces.range() : std::pair(kept, kept);
  if (in_view()) status.made = ledger_.paces.versions();
  return status;
}

// Empty unless the job gathers nodes or opens a view.
std::string CoordinatedJob::waiting_for() const {
  std::string missing;
  const auto add = [&](const std::string& who) { missing += (missing.empty() ? "" : ", ") + who; };
  if (is<GatheringJob>()) {
    missing = missing_in_words(members(), ledger_.awaited, config(), ledger_.nodes);
    const std::set<std::uint16_t> with_state = ledger_.with_state();
    for (std::uint16_t index = 0; index < servers(); ++index) {
      const std::string who = "server " + std::to_string(index);
      if (!ledger_.context.peers.stays(index) && ledger_.placed.needs(config().membership, with_state, index))
        add(ledger_.context.peers.alive(index) ? who + ", which is being stopped" : who);
    }
    for (const auto& [node, why] : std::get<GatheringJob>(phase_).refused) {
      missing += "; node " + std::to_string(node) + " was refused: " + why;
    }
    if (missing.empty() && servers() != 0 && ledger_.context.copies.searching()) {
      add("records of jobs, which servers may have newer copies of");
    }
    if (missing.empty() && ledger_.keeper.saves()) add("the disk of the coordinator, which records the job");
  } else if (const OpeningView* opening = std::get_if<OpeningView>(&phase_)) {
    for (const auto& [index, server] : ledger_.context.peers.servers()) {
      if (!opening->awaited.contains(index)) continue;
      const auto loaded = opening->loaded.find(index);
      const bool some = loaded != opening->loaded.end() && loaded->second != 0;
      add("server " + std::to_string(index) + ", which loads its part" +
          (some ? " (" + bytes_in_words(static_cast<double>(loaded->second)) + " so far)" : std::string()));
    }
  }
  return missing;
}

// Sends the nodes that have joined the list of what they wait for.
void CoordinatedJob::tell_waits(std::uint64_t now_ms) {
  if (members().empty() || now_ms < waits_told_ms_ + kTellWaitsMs) return;
  const std::string missing = waiting_for();
  if (missing.empty()) return;
  waits_told_ms_ = now_ms;
  ledger_.send(members(), JobWaits{config().name, missing, loaded_});
}

// ---- While a view is open ----

void CoordinatedJob::on(PeerId from, const RoundFacts& m) {
  JobView* open = view();
  if (!open || !open->gate) return;
  const Result<RoundGate::Reply> reply = open->gate->on_facts(m);
  if (!reply) return ledger_.context.refuse(from, reply.error(), config().name);
  if (!reply->decision) return;
  if (reply->for_all) {
    ledger_.send_servers(*reply->decision);
  } else if (!m.decided.known()) {
    ledger_.context.output.send(from, *reply->decision);
  }
}

void CoordinatedJob::on(const Peers::Worker& worker, const NodePace& pace) {
  if (!trains()) return;
  JobMembers& members = view()->members;
  const auto member = members.find(pace.node.value);
  if (member == members.end() || member->second.worker != worker.hello.incarnation) return;
  ledger_.figures.note(pace.node, pace.view, pace.figures);
  member->second.said = pace.said;
  const bool gets_on = std::exchange(member->second.answers, pace.answers) != pace.answers;
  if (RunningView* running = std::get_if<RunningView>(&phase_)) return running->note(worker, pace);
  if (gets_on) std::get<StoppingView>(phase_).still_going();
}

void CoordinatedJob::on_progress(std::uint32_t maker, const JobProgress& progress, std::uint64_t now_ms) {
  RunningView* running = std::get_if<RunningView>(&phase_);
  if (OpeningView* opening = std::get_if<OpeningView>(&phase_)) {
    std::uint64_t& known = opening->loaded[static_cast<std::uint16_t>(maker)];
    if (progress.loaded > known) loaded_ += progress.loaded - std::exchange(known, progress.loaded);
  }
  if (running && servers() != 0 && progress.prepared) running->has_memory(static_cast<std::uint16_t>(maker));
  ledger_.paces.note(maker, view()->start.round, progress, now_ms);
}

void CoordinatedJob::on(const Peers::Worker& worker, const PeerAddress& m) {
  RunningView* running = std::get_if<RunningView>(&phase_);
  if (servers() == 0 && running) running->on(worker, m);  // else it is of a view that is over
}

void CoordinatedJob::on(const Peers::Worker& worker, const NodeRankState& m, std::uint64_t now_ms) {
  RunningView* running = std::get_if<RunningView>(&phase_);
  if (running && record().view == m.view) running->on(worker, m);
  if (servers() == 0) return;
  ledger_.keeper.keep(worker.hello.incarnation, m, now_ms);
  look_for_state(now_ms);
}

void CoordinatedJob::on(const Peers::Worker& worker, const RankValues& m, std::uint64_t now_ms) {
  if (RunningView* running = std::get_if<RunningView>(&phase_)) running->on(worker, m, now_ms);  // else it ends
}

void CoordinatedJob::part_is_there(std::uint64_t now_ms) {
  ledger_.keeper.part_is_there();
  look_for_state(now_ms);
}

void CoordinatedJob::look_for_state(std::uint64_t now_ms) {
  if (RunningView* running = std::get_if<RunningView>(&phase_)) return running->look_for_state(now_ms);
  if (StoppingView* stopping = std::get_if<StoppingView>(&phase_)) end_stop(stopping->look_for_state(now_ms), now_ms);
}

// The view may have ended meanwhile: the next one can still begin with a part that a server has made durable. Reports
// of older views are ignored, because their rounds may have been repeated since.
void CoordinatedJob::on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms) {
  if (record().view != m.view) return;
  if (m.ok) ledger_.context.peers.add_snapshot(server, m.job, config().name, m.round);
  if (RunningView* running = std::get_if<RunningView>(&phase_)) return running->on(server, m, now_ms);
  if (StoppingView* stopping = std::get_if<StoppingView>(&phase_)) end_stop(stopping->on(server, m, now_ms), now_ms);
}

// A server has a copy of another one's part, or its own part again. The committed round is the same in all views.
void CoordinatedJob::on(std::uint16_t server, const SnapshotCopied& m, std::uint64_t now_ms) {
  const bool own = m.shard == ShardIndex(server);
  if (m.job != record().job) {  // of its chunks on other servers
    if (!dealt()) return;
    if (m.ok) ledger_.context.peers.add_snapshot(server, m.job, config().name, m.round, own ? kNoShard : m.shard);
    std::get<IdleJob>(phase_).loading->copies->on(server, m, now_ms);
    if (m.unreadable) ledger_.context.checkpoints.unreadable(m.job, said_by(server, m.message), now_ms);
    return;
  }
  if (record().view != m.view && !(m.ok && record().initialised && m.round == record().committed)) return;
  if (m.ok) ledger_.context.peers.add_snapshot(server, m.job, config().name, m.round, own ? kNoShard : m.shard);
  if (ledger_.copies.on(server, m, now_ms)) {
    ledger_.log("a snapshot of " + in_words() + " has fewer copies than it is to have: " + said_by(server, m.message),
                LogLevel::kWarning);
  }
  drop_older();
  if (m.unreadable && !(record().initialised && m.round <= record().committed)) {
    // As a part that its server could not write.
    const std::string why = "its part is written, and cannot be read: " + said_by(server, m.message);
    const SnapshotDone lost{m.job, m.view, m.round, false, 0, why, m.code};
    if (RunningView* running = std::get_if<RunningView>(&phase_)) running->lose_written(m.shard.value, lost, now_ms);
    if (is<StoppingView>()) on(m.shard.value, lost, now_ms);
    return;
  }
  if (RunningView* running = std::get_if<RunningView>(&phase_)) return running->look_for_copies(now_ms);
  if (StoppingView* stopping = std::get_if<StoppingView>(&phase_)) end_stop(stopping->look_for_copies(now_ms), now_ms);
}

// All-reduce: node 0 reports, for the nodes that keep the state, whether the view's last one is written. Node 0 repeats
// the report until it is answered, and may send it before all other nodes have left.
void CoordinatedJob::on(const Peers::Worker& worker, const SnapshotDone& m, std::uint64_t now_ms) {
  const bool keeper = servers() == 0 && trains() && record().view == m.view &&
                      members().begin()->second.worker == worker.hello.incarnation;
  if (!keeper) return tell_outcome(worker.peer, m.view, m.round);
  if (RunningView* running = std::get_if<RunningView>(&phase_)) {
    running->node_zero_kept = m;
  } else {
    end_stop(std::get<StoppingView>(phase_).kept_by_node_zero(m, now_ms), now_ms);
  }
}

// Returns the round that the next checkpoint is made of; kToCome: of one that is yet to be named, as a store is broken. A
// snapshot counts as committed when the record that says so is saved.
std::optional<Round> CoordinatedJob::newest_state() const {
  if (servers() == 0 || loading() || removing()) return std::nullopt;
  if (is<RunningView>() && store_broken()) return CheckpointSchedule::kToCome;
  if (const auto kept = round_in_memory()) return kept;
  return record().initialised && ledger_.keeper.told() ? std::optional(record().committed) : std::nullopt;
}

// A job that lost its nodes trains on when they are back; if the cluster is being stopped, it does not.
bool CoordinatedJob::stays_stopped() const {
  return idle() && (ledger_.ended != StopKind::kRestart || ledger_.context.draining);
}

bool CoordinatedJob::checkpoint_due(std::uint64_t now_ms) const {
  const CheckpointSchedule& schedule = ledger_.checkpoints;
  const auto newest = newest_state();
  return newest && schedule.due(config().checkpoint, *newest, stays_stopped(), now_ms);
}

bool CoordinatedJob::owes_checkpoint() const {
  const CheckpointSchedule& schedule = ledger_.checkpoints;
  if (schedule.under_way()) return true;
  const auto newest = newest_state();
  return newest && stays_stopped() && schedule.owed(config().checkpoint, *newest);
}

void CoordinatedJob::checkpoint_ordered(std::uint64_t order, std::uint64_t now_ms) {
  ledger_.checkpoints.ordered(config().checkpoint, order, newest_state().value_or(Round()), now_ms);
}

void CoordinatedJob::tick(std::uint64_t now_ms) {
  if (const auto order = ledger_.checkpoints.under_way()) {
    ledger_.checkpoints.look(ledger_.context.checkpoints.status(*order), now_ms);
  }
  if (!removing()) ledger_.keeper.tick(now_ms);  // a save would bring the record back
  keep_copied(now_ms);
  ask_again(now_ms);
  if (RunningView* running = std::get_if<RunningView>(&phase_)) {
    const auto left_behind = running->tick(now_ms);
    if (left_behind) begin_stop(StopKind::kStopped, left_behind->round, left_behind->why, now_ms);
  } else if (StoppingView* stopping = std::get_if<StoppingView>(&phase_)) {
    end_stop(stopping->tick(now_ms), now_ms);
  } else {
    tell_waits(now_ms);
  }
}

// The committed snapshot has its copies, and servers their parts, again after a loss, and get them after a restore.
void CoordinatedJob::keep_copied(std::uint64_t now_ms) {
  const bool trains_or_rests = is<RunningView>() || between() != nullptr;
  if (servers() == 0 || loading() || removing() || !trains_or_rests || now_ms < copies_due_ms_) return;
  if (record().job.value == 0) return;
  copies_due_ms_ = now_ms + SnapshotCopies::kRepeatMs;
  ledger_.copy_parts(now_ms);
  if (!record().initialised || !ledger_.keeper.told()) return;
  const SnapshotCopies::Snapshot newest = ledger_.snapshot(record().committed);
  ledger_.copies.order(config().snapshot, newest, true, now_ms);
  ledger_.copies.restore(newest, now_ms);
  drop_older(true);
  // As long as servers are away nobody knows whether each part is anywhere.
  const bool all_known = !ledger_.context.copies.searching() && ledger_.context.peers.all_servers();
  const bool there = all_known && ledger_.copies.count(newest) > 0;
  if (!record().provisional || !there || !ledger_.copies.settled(config().snapshot, newest)) return;
  ledger_.commit(record().committed, record().finished, now_ms);
}

// ---- Nodes leave ----

void CoordinatedJob::on(const Peers::Worker& worker, const LeaveJob& m, std::uint64_t now_ms) {
  // A message of the view that is over: its trainers still wait for the outcome, while others join for the next one.
  if (is<GatheringJob>() && m.job.value != 0 && m.kind != LeaveKind::kFailed) {
    return tell_outcome(worker.peer, m.view, m.round);
  }
  JobView* open = view();
  if (open) ledger_.figures.note(m.node, m.view, m.figures);
  if (open && open->members.at(m.node.value).left) return;  // repeated, because the answer takes its time
  // A node that leaves before its view began has contributed nothing: if the others began meanwhile, the view ends.
  if (!trains() || m.kind == LeaveKind::kFailed || m.job.value == 0) {
    return lose_member(
        m.node.value,
        "node " + std::to_string(m.node.value) + " failed: " + (m.message.empty() ? "no reason given" : m.message),
        now_ms);
  }
  if (RunningView* running = std::get_if<RunningView>(&phase_)) return leave_running(*running, worker, m, now_ms);
  open->members.at(m.node.value).left = m;
  std::get<StoppingView>(phase_).needs_nothing(m.node.value, now_ms);
}

void CoordinatedJob::leave_running(RunningView& running, const Peers::Worker& worker, const LeaveJob& m,
                                   std::uint64_t now_ms) {
  const std::string who = "node " + std::to_string(m.node.value);
  JobMember& member = running.view.members.at(m.node.value);
  if (m.kind == LeaveKind::kStopped && member.leaving && running.goes_on_without(m.node.value)) {
    CoordinatorOutput& output = ledger_.context.output;
    output.send(worker.peer, StopJob{m.job, m.view, StopKind::kStopped, m.round, who + " was stopped"});
    output.send(worker.peer, SnapshotDone{m.job, m.view, m.round, true, 0, {}});  // the others have it
    restart(who + " left after round " + std::to_string(m.round.value), now_ms);
    return ledger_.awaited.forget_node(m.node.value);
  }
  member.left = m;
  const bool ends = m.kind == LeaveKind::kFinishesAll;
  if (m.kind == LeaveKind::kStopped || ends) {
    // This node has every answer of round m.round and pushes no more: no chunk anywhere can go past it, so all are
    // there. (Nodes with clocks of their own are anywhere.)
    const std::string reason = running.stop_requested() ? ledger_.last_stop
                               : !m.message.empty()     ? m.message
                               : ends                   ? who + " ended training"
                                                        : who + " was stopped";
    const StopKind kind = ends ? StopKind::kFinished : StopKind::kStopped;
    return begin_stop(kind, running.stop_round(m.round), reason, now_ms);
  }
  if (all_left(members())) begin_stop(StopKind::kFinished, m.round, "training is complete", now_ms);
}

// Handles the loss of a node: it did not leave cleanly, and will contribute nothing more.
void CoordinatedJob::lose_member(std::uint32_t node, const std::string& reason, std::uint64_t now_ms) {
  if (GatheringJob* gathering = std::get_if<GatheringJob>(&phase_)) {
    gathering->members.erase(node);
    reconsider();
    if (gathering->members.empty()) become_idle(std::move(gathering->between), now_ms);
  } else if (OpeningView* opening = std::get_if<OpeningView>(&phase_)) {
    opening->view.members.erase(node);
    gather_again(reason, now_ms);
  } else if (RunningView* running = std::get_if<RunningView>(&phase_)) {
    // A node that finished has every answer of its last round and pushes no more: every chunk is there, and that state
    // is kept.
    if (const JobMember* finished = one_that_left(members())) {
      begin_stop(StopKind::kStopped, running->stop_round(finished->left->round), reason, now_ms);
      StoppingView* stopping = std::get_if<StoppingView>(&phase_);
      if (stopping && stopping->lacks(node)) stopping->needs_nothing(node, now_ms);
      return;
    }
    restart(reason, now_ms);
    ledger_.awaited.forget_node(node);
  } else if (StoppingView* stopping = std::get_if<StoppingView>(&phase_)) {
    const bool keeper = servers() == 0 && node == members().begin()->first;
    if (keeper) return end_stop(stopping->node_zero_lost(reason), now_ms);
    stopping->needs_nothing(node, now_ms);
  }
}

// ---- A view ends ----

void CoordinatedJob::request_stop(const std::string& reason) {
  if (RunningView* running = std::get_if<RunningView>(&phase_)) running->request_stop(reason);
}

void CoordinatedJob::begin_stop(StopKind kind, Round round, const std::string& reason, std::uint64_t now_ms) {
  ledger_.last_stop = reason;
  ledger_.ended = kind;
  ledger_.keeper.stop(reason);
  ledger_.awaited.forget();
  RunningView& running = std::get<RunningView>(phase_);
  const std::optional<SnapshotDone> kept = std::move(running.node_zero_kept);
  JobView ended = std::move(running.view);
  StoppingView& stopping = phase_.emplace<StoppingView>(ledger_, std::move(ended), kind, round, now_ms);
  ledger_.log(in_words() + " stops at round " + std::to_string(round.value) + ": " + reason);
  stopping.begin(now_ms);
  if (servers() != 0) return;
  // Node 0 reports when the state is written. The report may have come already, or node 0 be gone.
  if (kept) return end_stop(stopping.kept_by_node_zero(*kept, now_ms), now_ms);
  const auto& [node, keeper] = *members().begin();
  if (!ledger_.context.peers.worker(keeper.worker)) {
    lose_member(node, "node " + std::to_string(node) + " is lost", now_ms);
  }
}

void CoordinatedJob::end_stop(StoppingView::Over over, std::uint64_t now_ms) {
  if (over) become_idle(std::move(*over), now_ms);
}

void CoordinatedJob::restart(const std::string& reason, std::uint64_t now_ms) {
  ledger_.last_stop = reason;
  ledger_.log(in_words() + " leaves view " + std::to_string(record().view.value) + ": " + reason + "; " +
                  ledger_.home().outlook(record()),
              LogLevel::kWarning);
  if (stopping()) ledger_.not_saved = reason;
  ledger_.ended = StopKind::kRestart;
  ledger_.send_servers(ledger_.cut_message());
  ledger_.send(members(), ledger_.cut_message());
  ledger_.awaited.view_over(members(), now_ms + config().membership.rejoin_ms);
  become_idle(ledger_.ask_kept(), now_ms);
}

// The view that was being opened is given up. No worker has heard of it: those that joined wait for the next one.
void CoordinatedJob::gather_again(const std::string& reason, std::uint64_t now_ms) {
  ledger_.last_stop = reason;
  ledger_.log(in_words() + " gives view " + std::to_string(record().view.value) + " up while opening: " + reason,
              LogLevel::kWarning);
  ledger_.send_servers(ledger_.cut_message());
  JobMembers members = std::move(std::get<OpeningView>(phase_).view.members);
  if (members.empty()) return become_idle(ledger_.ask_kept(), now_ms);
  phase_ = GatheringJob{ledger_.ask_kept(), std::move(members), {}};
}

void CoordinatedJob::become_idle(BetweenViews between, std::uint64_t now_ms) {
  phase_ = IdleJob{std::move(between), {}};
  ledger_.context.checkpoints.view_over(config().name, ledger_.last_stop, now_ms);
}

// ---- Peers come and go ----

void CoordinatedJob::tell_again(const Peers::Server& server, std::uint64_t now_ms) {
  if (servers() == 0) return;
  const std::uint16_t shard = server.hello.shard.value;
  const auto tell = [&](const ControlMessage& message) { ledger_.context.output.send(server.peer, message); };
  if (const OpeningView* opening = std::get_if<OpeningView>(&phase_)) {
    if (!opening->awaited.contains(shard)) return;
    ledger_.context.copy_to(server, record(), now_ms);
    tell(open_message(ledger_, opening->view, shard));
  } else if (const RunningView* running = std::get_if<RunningView>(&phase_)) {
    running->tell_again(server);
  } else if (const StoppingView* stopping = std::get_if<StoppingView>(&phase_)) {
    if (stopping->ordered() && stopping->awaits(shard)) tell(stopping->message());
  } else if (between()->asked.contains(shard)) {
    tell(ledger_.cut_message());  // what it keeps of the last view is still to be said
  }
}

void CoordinatedJob::tell_again(std::uint64_t worker) {
  const auto member = member_of(members(), worker);
  if (member == members().end()) return;
  if (const RunningView* running = std::get_if<RunningView>(&phase_)) {
    running->tell_again(member->first, member->second);
  } else if (const StoppingView* stopping = std::get_if<StoppingView>(&phase_)) {
    ledger_.context.send_worker(worker, stopping->message());
  }
}

void CoordinatedJob::server_lost(std::uint16_t server, const std::string& reason, std::uint64_t now_ms) {
  if (servers() == 0) return;
  if (BetweenViews* between = this->between()) {
    between->kept.erase(server);
    between->asked.erase(server);
    reconsider();
    look_at_kept(now_ms);
  } else if (is<OpeningView>()) {
    gather_again(reason, now_ms);
  } else if (const StoppingView* stopping = std::get_if<StoppingView>(&phase_);
             !stopping || (shards().contains(server) && (stopping->awaits(server) || stopping->lacks_copy(server)))) {
    restart(reason, now_ms);  // its part of the state may be lost
  }
}

void CoordinatedJob::worker_lost(std::uint64_t worker, const std::string& reason, std::uint64_t now_ms) {
  const auto member = member_of(members(), worker);
  if (member == members().end() || (member->second.left && !stopping())) return;
  const std::uint32_t node = member->first;
  lose_member(node, "node " + std::to_string(node) + " is lost: " + reason, now_ms);
}

void CoordinatedJob::expel(std::uint64_t worker) {
  JobView* open = view();
  if (!open) return;
  const auto member = member_of(open->members, worker);
  if (member != open->members.end()) member->second.left.reset();
}

void CoordinatedJob::worker_stops(std::uint64_t worker, const std::string& who, std::uint64_t now_ms) {
  const auto member = member_of(members(), worker);
  if (member == members().end() || stopping()) return;
  const std::uint32_t node = member->first;
  RunningView* running = std::get_if<RunningView>(&phase_);
  if (!running) return lose_member(node, who + " was told to stop", now_ms);
  if (!running->goes_on_without(node)) return running->request_stop(who + " was told to stop");
  running->request_stop_of(node);
}

void CoordinatedJob::begin_loading(LoadingJob loading, std::uint64_t now_ms) {
  if (GatheringJob* gathering = std::get_if<GatheringJob>(&phase_)) {
    ledger_.refuse(members(),
                   {ErrorCode::kUnavailable, in_words() + " is being " + loading.what + "; attach again in a moment"});
    become_idle(std::move(gathering->between), now_ms);
  }
  std::get<IdleJob>(phase_).loading = std::move(loading);
}

void CoordinatedJob::drain(const std::string& who, std::uint64_t now_ms) {
  if (stopping()) return;
  if (is<RunningView>()) return request_stop(who + " was told to stop");
  if (!idle()) {
    ledger_.refuse(members(), {ErrorCode::kStopped, "the cluster is being stopped; attach again when it is back"});
    if (OpeningView* opening = std::get_if<OpeningView>(&phase_)) {
      opening->view.members.clear();
      gather_again(who + " was told to stop", now_ms);
    } else {
      ledger_.last_stop = who + " was told to stop";
      become_idle(std::move(std::get<GatheringJob>(phase_).between), now_ms);
    }
  }
  save_kept(who, now_ms);
}

}  // namespace tributary

// Trainers of a job coming and going, and how its view ends; how one begins is in attached_job_begin.cc.
#include "worker/attached_job.h"

#include <algorithm>
#include <utility>

#include "common/base/printed.h"
#include "common/config/job_json.h"

namespace tributary {

using namespace attached;

AttachedJob::AttachedJob(NodeJobsContext& context, const JobConfig& config, const AttachRequest& request)
    : context_(context), plan_(JobPlan::of(config)), tensors_(request.tensors), trainers_(request) {}

AttachedJob::~AttachedJob() {
  if (trace_) end_trace();
  if (const auto job = running()) context_.lanes.close(job, false);
}

std::pair<JobId, ViewId> AttachedJob::view() const {
  if (const Left* left = std::get_if<Left>(&phase_)) return {left->said.job, left->said.view};
  if (const Over* over = std::get_if<Over>(&phase_)) return {over->end.job, over->end.view};
  const Agreeing* agreeing = std::get_if<Agreeing>(&phase_);
  const auto job = running();
  const ViewPlan* view = job ? &job->view() : agreeing ? agreeing->spec.view.get() : nullptr;
  return view ? std::pair(view->job, view->view) : std::pair(JobId(), ViewId());
}

std::shared_ptr<NodeJob> AttachedJob::running() const {
  const Running* running = std::get_if<Running>(&phase_);
  return running ? running->job : nullptr;
}

bool AttachedJob::awaits_outcome() const {
  const Over* over = std::get_if<Over>(&phase_);
  return over && !over->outcome && trainers_.any(&LocalTrainer::waits);
}

bool AttachedJob::finished() const {
  return (over() || in<Gathering>()) && !trainers_.any(&LocalTrainer::connected);
}

bool AttachedJob::drained(bool coordinator_done) const {
  const Over* over = std::get_if<Over>(&phase_);
  const bool ended_well = over && over->end.kind != StopKind::kRestart;
  // Trainers that have detached, or whose view was cut, may take their time to close.
  if (in<Running>() || (ended_well && trainers_.any(&LocalTrainer::takes_part))) return false;
  return coordinator_done || !(in<Joining>() || in<Agreeing>() || in<Left>() || awaits_outcome());
}

NodeJobSummary AttachedJob::summary() const {
  static constexpr const char* kNames[] = {"gathering", "joining", "agreeing", "running", "left", "over"};
  NodeJobSummary summary;
  summary.name = name();
  summary.phase = kNames[phase_.index()];
  summary.node = trainers_.node().value;
  summary.local_world_size = trainers_.local_world_size();
  summary.job = running();
  summary.world_size = summary.job ? summary.job->view().nodes * trainers_.local_world_size() : trainers_.world_size();
  summary.last_refusal = last_refusal_;
  for (const auto& [local_rank, trainer] : trainers_) {
    if (trainer.connected) summary.attached.push_back({trainer.rank, local_rank, trainer.pid});
    summary.figures.add(trainer.figures);
  }
  return summary;
}

// ---- Trainers ----

Status AttachedJob::admit(const AttachRequest& request, const JobConfig& config) const {
  const std::string job = in_words();
  if (Status fits = trainers_.admit(request, job); !fits) return fits;
  if (const std::string difference = describe_difference(tensors_, request.tensors); !difference.empty()) {
    return fail(ErrorCode::kLayoutMismatch,
                printed("rank %u declares other tensors than the ranks of %s that are attached: %s; start the same "
                        "model on every rank",
                        request.rank, job.c_str(), difference.c_str()));
  }
  if (const std::string difference = describe_any_config_difference(plan_->config, config); !difference.empty()) {
    return fail(ErrorCode::kConfigMismatch,
                printed("rank %u brings another configuration than the ranks of %s that are attached: %s; use the "
                        "same job file on every rank",
                        request.rank, job.c_str(), difference.c_str()));
  }
  return {};
}

void AttachedJob::attach(TrainerId id, const AttachRequest& request, int peer_pid, FileDescriptor kept,
                         std::uint64_t now_ms) {
  trainers_.add(id, request, peer_pid);
  if (kept && brought_.size() < trainers_.local_world_size()) brought_.push_back(std::move(kept));
  context_.logger->info("{}: {} attached ({} of {} local ranks)", in_words(), trainers_.who(request.local_rank),
                        trainers_.size(), trainers_.local_world_size());
  if (!in<Gathering>() || !trainers_.complete()) return;
  number_ = ++context_.last_join;
  join(now_ms);
}

void AttachedJob::initial_values(std::uint32_t local_rank) {
  Running* running = std::get_if<Running>(&phase_);
  if (!running) return;
  const LocalTrainer& trainer = trainers_.at(local_rank);
  const NodeJobSpec& spec = running->job->spec();
  if (!spec.gives_values(local_rank)) {
    return context_.refuse(
        trainer.id,
        {ErrorCode::kInvalidArgument, printed("rank %u sent initial values; in a fresh job the first rank that holds a "
                                              "tensor gives its values, and nobody else",
                                              trainer.rank)});
  }
  if (!running->gave_values.insert(local_rank).second) return;
  for (std::uint32_t rank = 0; rank < spec.ranks; ++rank) {
    if (spec.gives_values(rank) && !running->gave_values.contains(rank)) return;
  }
  context_.lanes.initial_values(running->job);
}

// To be kept with a snapshot; the coordinator knows which rounds it wants.
void AttachedJob::rank_state(std::uint32_t local_rank, const RankState& state) {
  if (!in<Running>() && !over()) return;
  const auto [job, view_id] = view();
  if (view_id == ViewId()) return;
  context_.held.given(name(), local_rank, state.round);
  const NodeRankState said{job, view_id, trainers_.node(), local_rank, state};
  context_.coordinator.send(said);
  // Others wait for it: it may be lost on its way.
  Running* running = std::get_if<Running>(&phase_);
  const bool first = running && running->giver == trainers_.at(local_rank).rank;
  if (first && state.round == running->begun) running->giving = Giving{said};
}

void AttachedJob::held_state(std::uint32_t local_rank, KeptState state, std::uint64_t now_ms) {
  // The state may need the room of the parameters of the view before.
  if (Running* running = std::get_if<Running>(&phase_)) keep_parameters(*running);
  const Status held = context_.held.hold(name(), local_rank, std::move(state), now_ms);
  if (held || std::exchange(told_of_held_, true)) return;
  context_.logger->warn("{}", held.error().message);
}

void AttachedJob::detach(std::uint32_t local_rank, const Detach& detach, std::uint64_t now_ms) {
  LocalTrainer& trainer = trainers_.at(local_rank);
  Running* running = std::get_if<Running>(&phase_);
  if (trainer.left || (!running && takes_trainers())) return;
  if (running && detach.kind == LeaveKind::kFailed) {
    return lose(*running, local_rank, "failed: " + (detach.message.empty() ? "no reason given" : detach.message));
  }
  trainer.left = detach.kind;
  if (running) {
    if ((trainer.stopped() || trainer.ended()) && running->stopped_by.empty()) running->stopped_by = detach.message;
    leave_if_all_detached(*running, now_ms);
  } else if (const Over* over = std::get_if<Over>(&phase_)) {
    tell_outcome(*over, trainer);
  }
}

void AttachedJob::gone(std::uint32_t local_rank, std::uint64_t now_ms) {
  LocalTrainer& trainer = trainers_.at(local_rank);
  trainer.connected = false;
  if (!takes_trainers()) return;
  if (Running* running = std::get_if<Running>(&phase_)) {
    if (trainer.left) return;
    // After a stop at a round boundary a trainer may simply go.
    if (running->job->state() != RegionState::kStopped) return lose(*running, local_rank, "died");
    trainer.left = LeaveKind::kStopped;
    return leave_if_all_detached(*running, now_ms);
  }
  const std::string what = trainers_.who(local_rank) + " left before the job began";
  const Agreeing* agreeing = std::get_if<Agreeing>(&phase_);
  if (!in<Gathering>()) leave(LeaveKind::kFailed, agreeing ? agreeing->welcome.resume_round : Round(), what);
  if (!agreeing) context_.logger->info("{}: {}", in_words(), what);
  phase_ = Gathering{};
  trainers_.erase(local_rank);
}

// ---- What is said of its view ----

void AttachedJob::on(const SnapshotAt& m, std::uint64_t) {
  if (const auto job = running()) job->header().snapshot_round.store(m.round.value, std::memory_order_relaxed);
}

// It is of the view's giver, here or on another node.
void AttachedJob::on(const NodeRankState& m, std::uint64_t now_ms) {
  Running* running = std::get_if<Running>(&phase_);
  if (!running) return;
  running->giving.reset();
  deliver_first(*running, m.kept, now_ms);
}

void AttachedJob::deliver_first(Running& running, const RankState& state, std::uint64_t now_ms) {
  for (const auto& [local_rank, trainer] : trainers_) {
    if (trainer.takes_part()) running.states.deliver(trainer.id, StateDelivery::Whose::kFirst, state, now_ms);
  }
}

void AttachedJob::on(const StatePart& m, std::uint64_t now_ms) {
  if (Running* running = std::get_if<Running>(&phase_)) running->states.on(m, now_ms);
}

void AttachedJob::on(const TraceRounds& m, std::uint64_t) {
  const auto job = running();
  const bool known = trace_ && trace_->job() == job;
  if (m.last == Round()) {
    if (known) end_trace();
  } else if (job && plan_->on_servers() && m.first <= m.last && m.last.value - m.first.value < kMaxTraceRounds) {
    if (known && trace_->order().first == m.first) return;  // said again
    trace_.emplace(m, job);
    context_.lanes.trace(job, trace_->buffers());
  }
}

void AttachedJob::end_trace() {
  context_.lanes.trace(trace_->job(), std::vector<std::shared_ptr<TraceBuffer>>(trace_->buffers().size()));
  trace_->tell([this](const TracePart& part) { context_.coordinator.send(part); });
  trace_.reset();
}

void AttachedJob::on(const StopRequest& m, std::uint64_t) {
  if (Agreeing* agreeing = std::get_if<Agreeing>(&phase_)) agreeing->stop_requested = true;
  Running* running = std::get_if<Running>(&phase_);
  if (!running) return;
  context_.logger->info("{}: asked to stop after its round: {}", in_words(), m.reason);
  running->stopped_by = m.reason;
  running->job->set_state(RegionState::kStopRequested);
}

namespace {

// Ranks that lack the last answers continue the training when they come back.
StopJob without_answers(StopJob stop) {
  stop.kind = StopKind::kStopped;
  return stop;
}

}  // namespace

void AttachedJob::on(const StopJob& m, std::uint64_t now_ms) {
  const bool restarts = m.kind == StopKind::kRestart;
  if (Running* running = std::get_if<Running>(&phase_)) {
    // During a clean stop, a restart only repeats that the view is over.
    if (restarts && running->ordered) return;
    // A stop at a round boundary may overtake this node's last answers: they are let in first. Servers answer until
    // every node has reported that it has them.
    if (restarts || running->reached() >= m.round) return end(*running, m);
    // Where a view stops that made no round, nobody needs what it began with; but who was told so would train again.
    const bool needed = m.kind == StopKind::kFinished || m.round > running->begun ||
                        (plan_->push->keeps_residual() && !running->loaded);
    if (!needed) return end(*running, m);
    running->ordered.emplace(m, Patience(context_.options.stop_timeout_ms, now_ms));
  } else if (in<Agreeing>() && restarts) {
    phase_ = Joining{now_ms};
  } else if (in<Agreeing>()) {
    fail_with({ErrorCode::kStopped, in_words() + " was stopped before it began: " + m.reason});
  } else if (restarts) {
    // The state that it ended with was not written everywhere when somebody was lost.
    set_outcome(fail(ErrorCode::kUnavailable, m.reason));
  } else if (const Left* left = std::get_if<Left>(&phase_)) {
    become_over({m, std::nullopt, left->next_ms});
  }
}

void AttachedJob::on(const SnapshotDone& m, std::uint64_t) {
  set_outcome(m.ok ? Status() : fail(ErrorCode::kStore, m.message));
}

void AttachedJob::coordinator_restarted(std::uint64_t now_ms) {
  if (Running* running = std::get_if<Running>(&phase_)) {
    end(*running, cut_message(running->reached(), "the coordinator was restarted or had lost sight of this node"));
  } else if (in<Joining>() || in<Agreeing>()) {
    phase_ = Joining{now_ms + kJoinRetryMs};  // it does not know that we joined
  } else {
    set_outcome(fail(ErrorCode::kUnavailable,
                     "the coordinator was restarted, or had lost sight of this node, before it said so"));
  }
}

void AttachedJob::lane_failed(const LaneFailure& failure, std::uint64_t now_ms) {
  Running& running = std::get<Running>(phase_);
  const auto& [kind, local_rank, error] = failure;
  if (kind == LaneFailure::Kind::kRefused) {
    leave(LeaveKind::kFailed, running.reached(), error.message);
    fail_with(error);
  } else if (kind == LaneFailure::Kind::kTrainer) {
    const std::string broke = "broke the rules: " + error.message;
    const LocalTrainer& trainer = trainers_.at(local_rank);
    if (trainer.connected) context_.refuse(trainer.id, {error.code, trainers_.who(local_rank) + " " + broke});
    lose(running, local_rank, broke);
  } else {
    context_.logger->info("{}: {}", in_words(), error.message);
    if (running.ordered || running.found) return;
    // The coordinator's own words normally come before.
    running.found.emplace(cut_message(running.reached(), error.message),
                          now_ms + context_.options.peer_timeout_ms + kVerdictMs);
  }
}

void AttachedJob::drain(const Error& why, std::uint64_t now_ms) {
  // The coordinator has been told, and asks its trainers to stop: servers may have a part of the view's first round.
  if (Running* running = std::get_if<Running>(&phase_)) running->drain.emplace(kStopRequestMs, now_ms);
  if (!running() && takes_trainers()) fail_with(why);
}

void AttachedJob::abandon(const std::string& reason) {
  if (Running* running = std::get_if<Running>(&phase_)) cut(*running, reason);
}

// ---- Its view ends ----

LeaveJob AttachedJob::leave(LeaveKind kind, Round round, const std::string& message) {
  const auto [job, view_id] = view();
  LeaveJob said{job, view_id, trainers_.node(), kind, round, message, name(), summary().figures};
  context_.coordinator.send(said);
  return said;
}

// Called when a rank has detached cleanly.
void AttachedJob::leave_if_all_detached(Running& running, std::uint64_t now_ms) {
  const bool stopped = trainers_.any(&LocalTrainer::stopped), ended = trainers_.any(&LocalTrainer::ended);
  if (trainers_.any(&LocalTrainer::stays)) {
    // Without the rank that stopped no further round can be complete here: the others end at this one.
    if (stopped || ended) stop_after(running, ended ? StopKind::kFinished : StopKind::kStopped);
    return;
  }
  // One rank that stopped instead of finishing means that the job is to be resumed, unless another one ended it.
  const LeaveKind kind = ended ? LeaveKind::kFinishesAll : stopped ? LeaveKind::kStopped : LeaveKind::kFinished;
  const LeaveJob said = leave(kind, running.reached(), stopped || ended ? running.stopped_by : std::string());
  context_.logger->info("{}: all ranks of this node left at round {}", in_words(), said.round.value);
  context_.lanes.close(running.job, true);
  const std::uint64_t next_ms = now_ms + kLeaveRepeatMs;
  if (running.ordered || running.outcome) {
    become_over({running.ordered ? running.ordered->stop : cut_message(), running.outcome, next_ms});
  } else {
    phase_ = Left{said, next_ms};
  }
}

// Stops the other ranks after the last round of those that have left. Where ranks hold a model together, each has the
// answers of its own parts: the others may lack some of theirs, which are let in first.
void AttachedJob::stop_after(Running& running, StopKind kind) {
  if (running.reached() >= *last_of_left(running)) return stop_others(running, kind);
  if (kind == StopKind::kStopped && running.job->state() < RegionState::kStopRequested)
    running.job->set_state(RegionState::kStopRequested);
}

std::optional<Round> AttachedJob::last_of_left(const Running& running) const {
  std::optional<Round> last;
  for (const auto& [local_rank, trainer] : trainers_) {
    if (trainer.left) last = std::min(last.value_or(Round(~0ull)), running.job->said(local_rank));
  }
  return last;
}

void AttachedJob::stop_others(Running& running, StopKind kind) {
  if (running.job->state() >= RegionState::kStopped) return;
  const Round round = running.reached();
  AttachStopped message{kind, round, running.stopped_by};
  if (message.reason.empty()) message.reason = trainers_.who_left() + " after round " + std::to_string(round.value);
  trainers_.send(message, context_.trainers);
  running.job->set_state(RegionState::kStopped);
}

void AttachedJob::lose(Running& running, std::uint32_t local_rank, const std::string& what) {
  trainers_.at(local_rank).left = LeaveKind::kFailed;
  cut(running, trainers_.who(local_rank) + " " + what);
}

// The view is over here, and the coordinator ends it everywhere.
void AttachedJob::cut(Running& running, const std::string& reason) {
  const Round round = leave(LeaveKind::kFailed, running.reached(), reason).round;
  end(running, cut_message(round, reason));
}

StopJob AttachedJob::cut_message(Round round, const std::string& reason) const {
  const auto [job, view_id] = view();
  return {job, view_id, StopKind::kRestart, round, reason};
}

// The reason goes before the state, so that a trainer that sees the state finds the reason.
void AttachedJob::end(Running& running, StopJob stop) {
  keep_parameters(running);
  const bool restarts = stop.kind == StopKind::kRestart;
  context_.logger->log(restarts ? spdlog::level::warn : spdlog::level::info, "{}: view {} is over at round {}: {}",
                       in_words(), stop.view.value, stop.round.value, stop.reason);
  trainers_.send(AttachStopped{stop.kind, stop.round, stop.reason}, context_.trainers);
  running.job->set_state(restarts ? RegionState::kRestart : RegionState::kStopped);
  const bool whole = running.reached() == stop.round;
  if (!restarts && !whole && !plan_->on_servers() && running.job->spec().node.value == 0) {
    context_.checkpoints.tell({stop.job, stop.view, {}, false, 0, "node 0 has not got the last round in time"}, 0);
  }
  context_.lanes.close(running.job, !restarts && whole);
  std::optional<Status> outcome = running.outcome;
  // Ranks that had finished already are still there, and can go on with the others.
  if (restarts && !outcome) outcome = unsaved({ErrorCode::kUnavailable, stop.reason});
  become_over({std::move(stop), outcome});
  // Servers keep the view open until every node has said so, whatever its trainers do still.
  if (!restarts) leave(LeaveKind::kStopped, std::get<Over>(phase_).end.round, {});
}

// It is refused, by whomever.
void AttachedJob::fail_with(const Error& error) {
  for (const auto& [local_rank, trainer] : trainers_) {
    if (trainer.takes_part()) context_.refuse(trainer.id, error);
  }
  std::optional<Status> outcome;
  if (const Running* running = std::get_if<Running>(&phase_)) {
    running->job->set_state(RegionState::kFailed);
    context_.lanes.close(running->job, false);
    outcome = running->outcome;
  }
  become_over({cut_message(), outcome ? *outcome : unsaved(error)});
}

Status AttachedJob::unsaved(const Error& error) {
  context_.logger->error("{}: not saved: {}", in_words(), error.message);
  return tl::unexpected(error);
}

void AttachedJob::set_outcome(const Status& outcome) {
  Running* running = std::get_if<Running>(&phase_);
  const Over* over = std::get_if<Over>(&phase_);
  // While it still waits for the answers of its last round it has been told of the stop.
  const bool awaited =
      running ? (running->ordered || running->found) && !running->outcome : in<Left>() || (over && !over->outcome);
  if (!awaited) return;
  const Status known = outcome ? outcome : unsaved(outcome.error());
  if (running) {
    running->outcome = known;
  } else {
    become_over({over ? over->end : cut_message(), known});
  }
}

// Trainers that have left get the outcome now, if it is known.
void AttachedJob::become_over(Over over) {
  if (over.end.kind != StopKind::kRestart) context_.parameters.forget(name());
  for (const auto& [local_rank, trainer] : trainers_) tell_outcome(over, trainer);
  phase_ = std::move(over);
}

void AttachedJob::tell_outcome(const Over& over, const LocalTrainer& trainer) {
  // One that failed has been told why, and asks for nothing that was to be saved.
  if (!over.outcome || !trainer.waits() || trainer.left == LeaveKind::kFailed) return;
  if (const Status& outcome = *over.outcome; !outcome) {
    context_.trainers.send(trainer.id, AttachError{outcome.error().code, outcome.error().message});
  }
  context_.trainers.send(trainer.id, AttachStopped{over.end.kind, over.end.round, over.end.reason});
}

void AttachedJob::waits(const JobWaits& m) {
  Joining& joining = std::get<Joining>(phase_);
  joining.missing = m.missing;
  joining.progress = m.progress;
  last_refusal_.clear();
}

// ---- Time ----

void AttachedJob::tell_waits(std::uint64_t now_ms) {
  const Joining* joining = std::get_if<Joining>(&phase_);
  if ((!joining && !in<Gathering>()) || now_ms < waits_told_ms_ + kTellWaitsMs) return;
  waits_told_ms_ = now_ms;
  std::string missing = joining ? joining->missing : trainers_.missing();
  if (missing.empty() && joining) missing = last_refusal_.empty() ? "the coordinator's word" : last_refusal_;
  if (!missing.empty()) trainers_.tell({missing, joining ? joining->progress : 0}, context_.trainers);
}

void AttachedJob::publish(const PeerAddress& address, std::uint64_t now_ms) {
  addresses_.push_back(address);
  addresses_told_ms_ = now_ms;
  context_.coordinator.send(address);
}

// One may be lost on its way, and who lacks it has no other sign of this node. A view that has its first values has
// connected all of them; one that cannot is given up.
void AttachedJob::repeat_addresses(std::uint64_t now_ms) {
  const auto job = running();
  const bool connects = in<Agreeing>() || (job && job->answers() == 0);
  if (!connects || now_ms < addresses_told_ms_ + kAddressRepeatMs) return;
  addresses_told_ms_ = now_ms;
  for (const PeerAddress& address : addresses_) context_.coordinator.send(address);
}

void AttachedJob::tick(Running& running, std::uint64_t now_ms) {
  keep_parameters(running);
  const Round reached = running.reached();
  if (running.ordered) {
    auto& [stop, answers] = *running.ordered;
    if (reached >= stop.round) return end(running, stop);
    if (answers.over(running.job->answers(), now_ms)) {
      context_.logger->warn(
          "{}: no answer has come for {} ms since the stop at round {}; the parameters here are those of round {} in "
          "part",
          in_words(), context_.options.stop_timeout_ms, stop.round.value, reached.value);
      return end(running, without_answers(stop));
    }
  } else if (running.found && now_ms >= running.found->until_ms) {
    leave(LeaveKind::kFailed, reached, running.found->stop.reason);
    return end(running, running.found->stop);
  }
  if (running.drain && running.job->state() < RegionState::kStopRequested) {
    if (reached > running.begun || running.drain->over(running.job->answers(), now_ms))
      running.job->set_state(RegionState::kStopRequested);
  }
  // A rank that finished contributes nothing to a further round than its last: one that began it would wait forever.
  // (Where ranks hold a model together, each has rounds of its own parts: one may be ahead of what all have.)
  const std::optional<Round> last = last_of_left(running);
  const auto begins_another = [&](const auto& at) { return !at.second.left && running.job->beyond(at.first, *last); };
  // A rank that finished does not give another value, either.
  const auto is_missed = [&](const auto& at) { return at.second.left && running.values.waits_for(at.first, now_ms); };
  if (last && (std::ranges::any_of(trainers_, begins_another) || std::ranges::any_of(trainers_, is_missed))) {
    stop_others(running, StopKind::kStopped);
  } else if (last) {
    const bool ended = trainers_.any(&LocalTrainer::ended);
    if (ended || trainers_.any(&LocalTrainer::stopped))
      stop_after(running, ended ? StopKind::kFinished : StopKind::kStopped);
  }
}

void AttachedJob::tick(std::uint64_t now_ms) {
  context_.redo.in_use(name(), now_ms);
  context_.parameters.in_use(name(), now_ms);
  context_.held.in_use(name(), now_ms);
  context_.answers.in_use(name(), now_ms);
  tell_waits(now_ms);
  repeat_addresses(now_ms);
  if (trace_ && (trace_->job() != running() || trace_->over())) end_trace();
  if (Running* running = std::get_if<Running>(&phase_)) {
    running->states.tick(now_ms);
    for (const RankValues& said : running->values.tick(now_ms)) context_.coordinator.send(said);
    if (running->giving && now_ms >= running->giving->next_ms) {
      if (running->giving->next_ms != 0) context_.coordinator.send(running->giving->said);
      running->giving->next_ms = now_ms + kGiveRepeatMs;
    }
    tick(*running, now_ms);
  } else if (const Joining* joining = std::get_if<Joining>(&phase_); joining && now_ms >= joining->next_ms) {
    join(now_ms);
  } else if (const Agreeing* agreeing = std::get_if<Agreeing>(&phase_); agreeing && now_ms >= agreeing->until_ms) {
    const JobWelcome welcome = agreeing->welcome;
    decline(welcome, {ErrorCode::kTimeout,
                      printed("%s of %s did not say within %u ms whether it adds up on devices ([device] "
                              "collective_timeout_ms in worker.toml); do all workers have the same release?",
                              agreeing->agreement.missing().c_str(), in_words().c_str(),
                              context_.options.devices->patience_ms())});
  } else if (Left* left = std::get_if<Left>(&phase_); left && now_ms >= left->next_ms) {
    context_.coordinator.send(left->said);
    left->next_ms = now_ms + kLeaveRepeatMs;
  }
  Over* over = std::get_if<Over>(&phase_);
  if (!over || over->outcome) return;
  auto& [end, outcome, next_ms] = *over;
  if (now_ms < next_ms) return;
  if (next_ms != 0) leave(LeaveKind::kStopped, end.round, {});
  next_ms = now_ms + kLeaveRepeatMs;
}

}  // namespace tributary

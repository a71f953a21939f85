#include "server/coordinator/coordinated_job.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/coordinator/snapshots_asked.h"

namespace tributary {
namespace {

// The servers were told that a view is over, and say what they keep: all that are there.
BetweenViews ask_kept(std::uint16_t servers, const Peers& peers) {
  BetweenViews between;
  for (std::uint16_t index = 0; index < servers; ++index) {
    if (peers.alive(index)) between.asked.insert(index);
  }
  return between;
}

}  // namespace

CoordinatedJob::CoordinatedJob(CoordinatorContext& context, const JobConfig& config, JobRecord record,
                               std::set<JobId> older)
    : context_(context), keeper_(context, config.name, std::move(record), std::move(older)) {
  set_config(config);
  last_stop_ = this->record().last_stop;
}

void CoordinatedJob::set_config(const JobConfig& config) {
  config_ = config;
  home_ = make_state_home(config_, context_);
}

const JobMembers& CoordinatedJob::members() const {
  static const JobMembers kNone;
  if (const JobView* open = view()) return open->members;
  const phase::Gathering* gathering = std::get_if<phase::Gathering>(&phase_);
  return gathering ? gathering->members : kNone;
}

BetweenViews* CoordinatedJob::between() {
  if (phase::Idle* idle = std::get_if<phase::Idle>(&phase_)) return &idle->between;
  phase::Gathering* gathering = std::get_if<phase::Gathering>(&phase_);
  return gathering ? &gathering->between : nullptr;
}

JobView* CoordinatedJob::view() {
  if (phase::Opening* opening = std::get_if<phase::Opening>(&phase_)) return &opening->view;
  if (phase::Running* running = std::get_if<phase::Running>(&phase_)) return &running->view;
  phase::Stopping* stopping = std::get_if<phase::Stopping>(&phase_);
  return stopping ? &stopping->view : nullptr;
}

bool CoordinatedJob::takes_snapshot() const {
  const phase::Running* running = std::get_if<phase::Running>(&phase_);
  return stopping() || (running && running->snapshots.under_way());
}

bool CoordinatedJob::kept_by_servers() const {
  const phase::Idle* idle = std::get_if<phase::Idle>(&phase_);
  const phase::Gathering* gathering = std::get_if<phase::Gathering>(&phase_);
  return (idle && !idle->between.kept.empty()) || (gathering && !gathering->between.kept.empty());
}

bool CoordinatedJob::never_opened() const {
  return ids().empty() && members().empty() && !kept_by_servers() && !restoring();
}

JobStatus CoordinatedJob::status() const {
  static constexpr const char* kNames[] = {"idle", "gathering", "opening", "running", "stopping"};
  JobStatus status;
  status.record = record();
  if (!record().job_json.empty()) {
    status.name = config_.name;
    status.mode = word(config_.mode);
  }
  status.recorded = keeper_.saved();
  status.phase = kNames[phase_.index()];
  status.nodes = nodes_;
  status.joined = static_cast<std::uint32_t>(members().size());
  status.last_stop = last_stop_;
  status.not_saved = not_saved_;
  status.placement = placement_;
  if (std::holds_alternative<phase::Gathering>(phase_)) {
    status.waiting_for = missing_in_words(members(), awaited_, config_, nodes_);
    for (std::uint16_t index = 0; index < servers(); ++index) {
      if (!context_.peers.alive(index)) status.waiting_for += " server " + std::to_string(index);
    }
  }
  if (const phase::Running* running = std::get_if<phase::Running>(&phase_)) {
    status.paces = running->stragglers.nodes();
    for (const auto& [node, member] : members()) {
      if (const Peers::Worker* worker = context_.peers.worker(member.worker)) status.workers[node] = worker->hello.name;
    }
  }
  // Of a job that does not run nobody has more than what is kept.
  const Version kept(record().committed.value);
  std::tie(status.min_version, status.max_version) = in_view() ? paces_.range() : std::pair(kept, kept);
  return status;
}

void CoordinatedJob::send_members(const ControlMessage& message) {
  for (const auto& [node, member] : members()) context_.send_worker(member.worker, message);
}

void CoordinatedJob::send_servers(const ControlMessage& message) {
  if (servers() != 0) context_.send_servers(message);
}

// ---- Nodes leave ----

void CoordinatedJob::on(const Peers::Worker& worker, const LeaveJob& m, std::uint64_t now_ms) {
  // Of the view that is over: its trainers still wait to hear what came of it, while others have come for the next one.
  if (std::holds_alternative<phase::Gathering>(phase_) && m.job.value != 0 && m.kind != LeaveKind::kFailed) {
    return tell_outcome(worker.peer, m.view, m.round);
  }
  const std::string who = "node " + std::to_string(m.node.value);
  JobView* open = view();
  if (open && open->members.at(m.node.value).left) return;  // said again, because the answer takes its time
  // Whoever leaves before it began has contributed nothing, and fails the others if they began meanwhile.
  if (!trains() || m.kind == LeaveKind::kFailed || m.job.value == 0) {
    return lose_member(m.node.value, who + " failed: " + (m.message.empty() ? "no reason given" : m.message), now_ms);
  }
  JobMember& member = open->members.at(m.node.value);
  phase::Running* running = std::get_if<phase::Running>(&phase_);
  if (!running) {
    // Servers hear nothing of a node that still takes answers of the others, and wait for what it keeps all the same.
    member.left = m;
    return send_servers(stop_message());
  }
  if (m.kind == LeaveKind::kStopped && member.leaving && goes_on_without(m.node.value)) {
    context_.output.send(worker.peer, StopJob{m.job, m.view, StopKind::kStopped, m.round, who + " was stopped"});
    context_.output.send(worker.peer, SnapshotDone{m.job, m.view, m.round, true, 0, {}});  // the others have it
    restart(who + " left after round " + std::to_string(m.round.value), now_ms);
    return awaited_.forget_node(m.node.value);
  }
  member.left = m;
  if (m.kind == LeaveKind::kStopped) {
    // This node has every answer of round m.round and pushes no more: no chunk anywhere can go past it, so all are
    // there. (Nodes with clocks of their own are anywhere.)
    const std::string reason = running->stop_requested ? last_stop_
                               : m.message.empty()     ? who + " was stopped"
                                                       : m.message;
    return begin_stop(StopKind::kStopped, stop_round(m.round), reason, now_ms);
  }
  if (all_left(members())) begin_stop(StopKind::kFinished, m.round, "training is complete", now_ms);
}

// A node that will contribute nothing more, without having left in good order.
void CoordinatedJob::lose_member(std::uint32_t node, const std::string& reason, std::uint64_t now_ms) {
  if (phase::Gathering* gathering = std::get_if<phase::Gathering>(&phase_)) {
    gathering->members.erase(node);
    if (gathering->members.empty()) become_idle(std::move(gathering->between), now_ms);
  } else if (phase::Opening* opening = std::get_if<phase::Opening>(&phase_)) {
    opening->view.members.erase(node);
    gather_again(reason, now_ms);
  } else if (running()) {
    // A node that finished has every answer of its last round and pushes no more: every chunk is there, and that state
    // is kept.
    if (const JobMember* finished = one_that_left(members())) {
      return begin_stop(StopKind::kStopped, stop_round(finished->left->round), reason, now_ms);
    }
    restart(reason, now_ms);
    awaited_.forget_node(node);
  } else if (phase::Stopping* stopping = std::get_if<phase::Stopping>(&phase_);
             stopping && servers() == 0 && node == members().begin()->first) {
    stopping->failed = true;
    not_saved_ = reason + ", and had not said that its last checkpoint is written";
    end_unsaved(now_ms);
  }
}

// May the others go on when this node leaves a running view?
bool CoordinatedJob::goes_on_without(std::uint32_t node) const {
  const phase::Running* running = std::get_if<phase::Running>(&phase_);
  if (!running || !is_elastic(config_) || context_.draining || running->stop_requested) return false;
  const auto staying =
      std::ranges::count_if(members(), [&](const auto& entry) { return entry.first != node && !entry.second.leaving; });
  return static_cast<std::uint32_t>(staying) >= config_.membership.min_nodes;
}

// ---- A view ends ----

void CoordinatedJob::request_stop(const std::string& reason) {
  phase::Running* running = std::get_if<phase::Running>(&phase_);
  if (!running || std::exchange(running->stop_requested, true)) return;
  last_stop_ = reason;
  context_.output.log(in_words() + " is asked to stop after its round: " + reason);
  send_members(StopRequest{record().job, record().view, reason});
}

// The round that a stop is known by, when a node has left after `left` and has all answers of it: with synchronous
// rounds no chunk is before that. In modes of bounded staleness `left` is the count of that node alone, and the others
// stop wherever they are: the round is one that all of them are known to have passed on all chunks. The state that is
// kept says for each chunk which pushes beyond that it has, and they are not applied again when the job goes on.
// (Heartbeats tell of the past: a snapshot may have been committed since, of a round that all have passed, too.)
Round CoordinatedJob::stop_round(Round left) const {
  if (!has_clocks(config_)) return left;
  Round passed = left;
  for (const std::uint16_t shard : shards()) passed = std::min(passed, Round(paces_.min_version(shard).value));
  return std::max({passed, view()->start.loaded, record().committed});
}

// The round that the view under way ends with.
StopJob CoordinatedJob::stop_message() const {
  const phase::Stopping& stopping = std::get<phase::Stopping>(phase_);
  return {record().job, record().view, stopping.kind, stopping.round, last_stop_};
}

// The view has ended in the middle of a round.
StopJob CoordinatedJob::cut_message() const {
  return {record().job, record().view, StopKind::kRestart, record().committed, last_stop_};
}

void CoordinatedJob::begin_stop(StopKind kind, Round round, const std::string& reason, std::uint64_t now_ms) {
  phase::Running& running = std::get<phase::Running>(phase_);
  last_stop_ = reason;
  ended_ = kind;
  keeper_.stop(reason);
  awaited_.forget();
  const std::optional<SnapshotDone> kept = std::move(running.node_zero_kept);
  phase_ = phase::Stopping{std::move(running.view), kind, round, now_ms, {}};
  context_.output.log(in_words() + " stops at round " + std::to_string(round.value) + ": " + last_stop_);
  send_servers(stop_message());
  send_members(stop_message());
  if (servers() != 0) return;
  // Node 0 alone keeps the state, and says when it is written. It may have, or be gone.
  if (kept) return end_checkpointed(*kept, now_ms);
  const auto& [node, keeper] = *members().begin();
  if (!context_.peers.worker(keeper.worker)) lose_member(node, "node " + std::to_string(node) + " is lost", now_ms);
}

// All-reduce: what became of the state that the view ended with, which node 0 alone keeps. It says so again until it is
// answered, and may say it before all others have left.
void CoordinatedJob::on(const Peers::Worker& worker, const SnapshotDone& m, std::uint64_t now_ms) {
  const bool keeper = servers() == 0 && trains() && record().view == m.view &&
                      members().begin()->second.worker == worker.hello.incarnation;
  if (!keeper) return tell_outcome(worker.peer, m.view, m.round);
  if (stopping()) return end_checkpointed(m, now_ms);
  std::get<phase::Running>(phase_).node_zero_kept = m;
}

void CoordinatedJob::end_checkpointed(const SnapshotDone& kept, std::uint64_t now_ms) {
  phase::Stopping& stopping = std::get<phase::Stopping>(phase_);
  if (!kept.ok || kept.round < stopping.round) {
    stopping.failed = !kept.ok || kept.round.value != 0;
    not_saved_ = !kept.ok                ? kept.message
                 : kept.round.value == 0 ? "node 0 keeps no checkpoints; set [store] path in its worker.toml"
                                         : "node 0 stopped at round " + std::to_string(kept.round.value);
    return end_unsaved(now_ms);
  }
  not_saved_.clear();
  keeper_.end(kept.round, stopping.kind == StopKind::kFinished);
  tell_saved(true);
  become_idle({}, now_ms);
}

// The state that the job stopped with is not durable everywhere. It is in the servers' memory still, and the next view
// can begin with it.
void CoordinatedJob::end_unsaved(std::uint64_t now_ms) {
  const phase::Stopping& stopping = std::get<phase::Stopping>(phase_);
  const std::string round = std::to_string(stopping.round.value);
  // Where there is no store and nobody asked for one, a job that has come to its end has given all it was to give; one
  // that was to keep nothing has so wherever it stops.
  const bool stores = servers() != 0 ? context_.peers.all_have_stores() : stopping.failed;  // else node 0 has none
  const bool wanted = stopping.kind == StopKind::kFinished ? asks_for_snapshots(config_.snapshot)
                                                           : !declines_snapshots(config_.snapshot);
  const bool missed = stores || wanted;
  if (missed) {
    context_.output.log("the state of " + in_words() + " at round " + round +
                            " is not saved: " + home_->not_saved(not_saved_, config_, record()),
                        LogLevel::kError);
  } else {
    not_saved_.clear();
  }
  tell_saved(!missed);
  BetweenViews between;
  if (has_rounds(config_)) {
    send_servers(StopJob{record().job, record().view, StopKind::kRestart, record().committed,
                         "the state of round " + round + " could not be written"});
    between = ask_kept(servers(), context_.peers);
  }
  become_idle(std::move(between), now_ms);
}

// What came of the state that the job ends with: to the nodes, whose trainers wait for it.
void CoordinatedJob::tell_saved(bool saved) {
  send_members(SnapshotDone{record().job, record().view, std::get<phase::Stopping>(phase_).round, saved, 0,
                            saved ? std::string() : home_->not_saved(not_saved_, config_, record())});
}

void CoordinatedJob::tell_outcome(PeerId to, ViewId view, Round round) {
  if (record().view != view || ended_ == StopKind::kRestart) {  // it was cut, or nobody knows any more
    context_.output.send(to, StopJob{record().job, view, StopKind::kRestart, record().committed, "the view is over"});
    return;
  }
  const bool saved = not_saved_.empty();
  context_.output.send(to, SnapshotDone{record().job, view, round, saved, 0,
                                        saved ? std::string() : home_->not_saved(not_saved_, config_, record())});
}

void CoordinatedJob::restart(const std::string& reason, std::uint64_t now_ms) {
  last_stop_ = reason;
  context_.output.log(in_words() + " leaves view " + std::to_string(record().view.value) + ": " + reason + "; " +
                          home_->outlook(record()),
                      LogLevel::kWarning);
  if (stopping()) not_saved_ = reason;
  ended_ = StopKind::kRestart;
  send_servers(cut_message());
  send_members(cut_message());
  awaited_.view_over(members(), now_ms + config_.membership.rejoin_ms);
  become_idle(ask_kept(servers(), context_.peers), now_ms);
}

// The view that was being opened is given up. No worker has heard of it: those that joined wait for the next one.
void CoordinatedJob::gather_again(const std::string& reason, std::uint64_t now_ms) {
  last_stop_ = reason;
  context_.output.log(
      in_words() + " gives view " + std::to_string(record().view.value) + " up while opening: " + reason,
      LogLevel::kWarning);
  send_servers(cut_message());
  JobMembers members = std::move(std::get<phase::Opening>(phase_).view.members);
  if (members.empty()) return become_idle(ask_kept(servers(), context_.peers), now_ms);
  phase_ = phase::Gathering{ask_kept(servers(), context_.peers), std::move(members)};
}

void CoordinatedJob::become_idle(BetweenViews between, std::uint64_t now_ms) {
  phase_ = phase::Idle{std::move(between)};
  context_.checkpoints.view_over(config_.name, last_stop_, now_ms);
}

// ---- Peers come and go ----

void CoordinatedJob::on(std::uint16_t server, const ShardKept& m) {
  BetweenViews* between = this->between();
  if (!between) return;  // of a view before
  between->asked.erase(server);
  if (m.any) {
    between->kept[server] = {m.job, m.min_version, m.max_version, false};
  } else {
    between->kept.erase(server);
  }
}

// It says what it has.
void CoordinatedJob::on(const ServerHello& hello, bool known) {
  BetweenViews* between = this->between();
  if (!between) return;
  const std::uint16_t server = hello.shard.value;
  if (!known) {
    between->kept.erase(server);
    between->asked.erase(server);
  }
  const auto kept = std::ranges::find(hello.kept, record().job, &KeptJob::job);
  if (kept == hello.kept.end() || record().job.value == 0) return;
  if (kept->pending) {
    between->asked.insert(server);
  } else {
    between->kept[server] = *kept;
    between->asked.erase(server);  // what it said of that before may not have arrived
  }
}

void CoordinatedJob::server_lost(std::uint16_t server, const std::string& reason, std::uint64_t now_ms) {
  if (servers() == 0) return;
  if (BetweenViews* between = this->between()) {
    between->kept.erase(server);
    between->asked.erase(server);
  } else if (std::holds_alternative<phase::Opening>(phase_)) {
    gather_again(reason, now_ms);
  } else if (const phase::Stopping* stopping = std::get_if<phase::Stopping>(&phase_);
             !stopping || (shards().contains(server) && !stopping->done.contains(server))) {
    restart(reason, now_ms);  // its part of the state is lost
  }
}

void CoordinatedJob::worker_lost(std::uint64_t worker, const std::string& reason, std::uint64_t now_ms) {
  const auto member = member_of(members(), worker);
  if (member == members().end() || (member->second.left && !stopping())) return;
  const std::uint32_t node = member->first;
  lose_member(node, "node " + std::to_string(node) + " is lost: " + reason, now_ms);
}

void CoordinatedJob::server_stops(const std::string& who, std::uint64_t now_ms) {
  if (servers() == 0) return;
  request_stop(who + " was told to stop");
  if (std::holds_alternative<phase::Opening>(phase_)) gather_again(who + " was told to stop", now_ms);
}

void CoordinatedJob::worker_stops(std::uint64_t worker, const std::string& who, std::uint64_t now_ms) {
  const auto member = member_of(members(), worker);
  if (member == members().end() || stopping()) return;
  const std::uint32_t node = member->first;
  if (!running()) return lose_member(node, who + " was told to stop", now_ms);
  // In an elastic job the worker alone asks its trainers to stop.
  if (!goes_on_without(node)) return request_stop(who + " was told to stop");
  view()->members.at(node).leaving = true;
}

void CoordinatedJob::drain(const std::string& who, std::uint64_t now_ms) {
  if (idle() || stopping()) return;
  if (running()) return request_stop(who + " was told to stop");
  send_members(
      ControlError{ErrorCode::kStopped, "the cluster is being stopped; attach again when it is back", config_.name});
  if (phase::Opening* opening = std::get_if<phase::Opening>(&phase_)) {
    opening->view.members.clear();
    return gather_again(who + " was told to stop", now_ms);
  }
  last_stop_ = who + " was told to stop";
  become_idle(std::move(std::get<phase::Gathering>(phase_).between), now_ms);
}

}  // namespace tributary

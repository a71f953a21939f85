#include "server/coordinator/job/job_ledger.h"

#include <utility>

namespace tributary {

std::string said_by(std::uint16_t server, const std::string& message) {
  const std::string who = "server " + std::to_string(server);
  return message.starts_with(who) ? message : who + ": " + message;
}

JobLedger::JobLedger(CoordinatorContext& shared, const JobConfig& config, JobRecord record, std::set<JobId> older)
    : context(shared),
      keeper(shared, config.name, std::move(record), std::move(older)),
      copies(shared),
      placed(shared) {
  set_config(config);
  last_stop = this->record().last_stop;
}

void JobLedger::set_config(const JobConfig& config) {
  plan_ = JobPlan::of(config);
  home_ = make_state_home(this->config(), context);
}

void JobLedger::send(const JobMembers& members, const ControlMessage& message) const {
  for (const auto& [node, member] : members) context.send_worker(member.worker, message);
}

void JobLedger::refuse(const JobMembers& members, const Error& error) const {
  for (const auto& [node, member] : members) {
    context.send_worker(member.worker, ControlError{error.code, error.message, plan_->name(), member.join.number});
  }
}

void JobLedger::send_servers(const ControlMessage& message) const {
  if (servers() != 0) context.send_servers(message);
}

StopJob JobLedger::cut_message() const {
  return {record().job, record().view, StopKind::kRestart, record().committed, last_stop};
}

BetweenViews JobLedger::ask_kept() const {
  BetweenViews between;
  for (std::uint16_t index = 0; index < servers(); ++index) {
    if (context.peers.alive(index)) between.asked.insert(index);
  }
  return between;
}

void JobLedger::commit(Round round, bool finished, std::uint64_t now_ms) {
  not_saved.clear();
  store_broken = false;
  keeper.commit(round, finished);
  copies.committed(round);
  context.checkpoints.write(plan_->name(), record(), nodes, shards(), now_ms);
}

bool JobLedger::copied(Round round, bool paced, std::uint64_t now_ms) {
  const SnapshotCopies::Snapshot parts = snapshot(round);
  copies.order(config().snapshot, parts, paced, now_ms);
  return copies.settled(config().snapshot, parts);
}

std::optional<std::uint64_t> JobLedger::keeper_of_parts() const {
  const auto holder = copies.holder_for(config().snapshot, context.peers.home().value);
  const Peers::Server* server = holder ? context.peers.alive(*holder) : nullptr;
  return server ? std::optional(server->hello.incarnation) : std::nullopt;
}

void JobLedger::copy_parts(std::uint64_t now_ms) {
  if (context.copies.searching()) return;  // the record may be an old one
  context.parts.holders().copy_to(record().job, config().snapshot.copies != 1, keeper_of_parts(), now_ms);
}

void JobLedger::tell_commit(const JobMembers& members, std::uint64_t now_ms) const {
  context.copy(record(), now_ms);
  send_servers(SnapshotCommit{record().job, record().committed});
  send(members, SnapshotCommit{record().job, record().committed});
}

bool JobLedger::lacks_state(Round round, std::uint64_t now_ms) {
  const bool committed = record().initialised && record().committed == round;  // as it stands
  if (!rewinds() || committed || keeper.has_whole_state(round)) return false;
  keeper.fetch(round, now_ms);
  return true;
}

void JobLedger::snapshot_failed(std::uint16_t server, const SnapshotDone& m) {
  not_saved = said_by(server, m.message);
  store_broken |= m.code != ErrorCode::kStopped && context.peers.all_have_stores();
  log("snapshot of round " + std::to_string(m.round.value) + " of " + in_words() + " failed: " + not_saved,
      LogLevel::kWarning);
}

SnapshotDone JobLedger::outcome(Round round, bool saved) const {
  return {record().job,
          record().view,
          round,
          saved,
          0,
          saved ? std::string() : home_->not_saved(not_saved, config(), record())};
}

void JobLedger::tell_outcome(PeerId to, ViewId view, Round round) const {
  if (record().view != view || ended == StopKind::kRestart) {  // it was cut, or nobody knows any more
    context.output.send(to, StopJob{record().job, view, StopKind::kRestart, record().committed, "the view is over"});
    return;
  }
  context.output.send(to, outcome(round, not_saved.empty()));
}

}  // namespace tributary

#include "server/coordinator/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "common/config/job_json.h"
#include "common/config/step_runs.h"

namespace tributary {
CoordinatorCore::CoordinatorCore(const CoordinatorOptions& options, std::vector<JobRecord> registry,
                                 CoordinatorOutput& output)
    : context_(options, output, *this), last_id_(options.job_id_seed) {
  for (JobRecord& record : registry) {
    Result<JobConfig> config = job_from_json(record.job_json);
    context_.copies.knows(record, !config || on_servers(*config));
    if (!config) {
      output.log("job record " + std::to_string(record.job.value) + " is left aside: " + config.error().message,
                 LogLevel::kError);
      aside_.insert(record.job);
      continue;
    }
    // If two records have one name, the one with progress or the higher view counts until the other one is dropped.
    std::set<JobId> older;
    if (const auto known = jobs_.find(config->name); known != jobs_.end()) {
      older = known->second.ids();
      JobRecord other = known->second.record();
      jobs_.erase(known);
      if (std::pair(has_progress(other), other.view) > std::pair(has_progress(record), record.view)) {
        std::swap(other, record);
        config = job_from_json(record.job_json);
        older.erase(record.job);
        older.insert(other.job);
      }
    }
    const std::string name = config->name;
    jobs_.try_emplace(name, context_, *config, std::move(record), std::move(older));
  }
  if (!context_.copies.searching()) drop_unnamed_parts();
}

// Drops the large parts that an interrupted commit or removal of a job left behind. REQUIRES: the records are the newest
// that there are. Parts of jobs that have none are copies, which another server's coordinator had ordered.
void CoordinatorCore::drop_unnamed_parts() {
  std::map<JobId, std::set<LargePart>> named;
  for (const JobId job : context_.parts.jobs()) named[job];
  for (const auto& [name, job] : jobs_) {
    for (const JobId id : job.ids()) named.erase(id);
    if (job.idle() && job.record().job.value != 0) named[job.record().job] = large_parts_of(job.record().rank_states);
  }
  for (const JobId job : aside_) named.erase(job);
  for (const auto& [job, parts] : named) {
    if (!context_.checkpoints.restores(job)) context_.parts.keep_only(job, parts);
  }
}

void CoordinatorCore::on_message(PeerId from, const ControlMessage& message, std::uint64_t now_ms) {
  context_.peers.hear(from, now_ms);
  std::visit([&](const auto& m) { on(from, m, now_ms); }, message);
  answer_drains(now_ms);
}

// Not logged here: the caller, which decodes messages, limits the noise that garbage makes.
void CoordinatorCore::on_bad_message(PeerId from, const Error& error, const std::string& job) {
  context_.output.send(from, ControlError{error.code, error.message, job});
}

// Passes a message about one job to that job, if its author may send it.
template <class Message>
void CoordinatorCore::on(PeerId from, const Message& m, std::uint64_t now_ms) {
  Peers& peers = context_.peers;
  if constexpr (std::is_same_v<Message, ShardReady>) {
    const Peers::Server* server = peers.server_at(from);
    CoordinatedJob* job = job_in_view(m.job, m.view);
    if (server && job) job->on(server->hello.shard.value, m, now_ms);
  } else if constexpr (std::is_same_v<Message, ShardKept>) {
    const Peers::Server* server = peers.server_at(from);
    CoordinatedJob* job = job_with(m.job);
    if (!server || !job) return;
    job->on(server->hello.shard.value, m, now_ms);
    open_if_complete(*job, now_ms);
  } else if constexpr (std::is_same_v<Message, RoundFacts>) {
    CoordinatedJob* job = job_in_view(m.job, m.view);
    if (peers.server_at(from) && job) job->on(from, m);
  } else if constexpr (std::is_same_v<Message, SnapshotCopied>) {
    const Peers::Server* server = peers.server_at(from);
    if (!server) return;
    if (CoordinatedJob* job = job_with(m.job)) return job->on(server->hello.shard.value, m, now_ms);
    const auto dealt = jobs_.find(context_.checkpoints.dealt_under(m.job));
    if (dealt == jobs_.end()) return;
    dealt->second.on(server->hello.shard.value, m, now_ms);
    context_.checkpoints.tick(now_ms);  // it may have its copies
  } else if constexpr (std::is_same_v<Message, CheckpointDone>) {
    const Peers::Server* server = peers.server_at(from);
    if (server) context_.checkpoints.on(server->hello.shard, m, now_ms);
  } else if constexpr (std::is_same_v<Message, PeerAddress>) {
    const Peers::Worker* worker = peers.worker_at(from);
    CoordinatedJob* job = job_in_view(m.job, m.view);
    if (worker && job) job->on(*worker, m);
  } else if constexpr (std::is_same_v<Message, NodeRankState>) {
    const Peers::Worker* worker = peers.worker_at(from);
    CoordinatedJob* job = job_with(m.job);
    if (worker && job) job->on(*worker, m, now_ms);
  } else if constexpr (std::is_same_v<Message, RankValues>) {
    const Peers::Worker* worker = peers.worker_at(from);
    CoordinatedJob* job = job_in_view(m.job, m.view);
    if (worker && job) job->on(*worker, m, now_ms);
  } else if constexpr (std::is_same_v<Message, WantPart>) {
    if (const Peers::Server* server = peers.server_at(from))
      return context_.parts.answer(server->hello.incarnation, m, now_ms);
    const Peers::Worker* worker = peers.worker_at(from);
    const CoordinatedJob* job = job_with(m.job);
    if (!worker) return;
    // Only the job's members may read the state that it keeps.
    const bool member = job && member_of(job->members(), worker->hello.incarnation) != job->members().end();
    if (!member) return context_.output.send(from, StatePart{m, {}});
    context_.parts.answer(worker->hello.incarnation, m, now_ms);
  } else if constexpr (std::is_same_v<Message, StatePart>) {
    if (const Peers::Worker* worker = peers.worker_at(from)) context_.parts.take(worker->hello.incarnation, m, now_ms);
    if (const Peers::Server* server = peers.server_at(from)) context_.parts.take(server->hello.incarnation, m, now_ms);
  } else if constexpr (std::is_same_v<Message, HeldParts>) {
    if (const Peers::Server* server = peers.server_at(from)) context_.parts.holders().on(server->hello.incarnation, m);
  } else {
    context_.refuse(from, {ErrorCode::kMalformed, "this message is one that only the coordinator sends"});
  }
}

CoordinatedJob* CoordinatorCore::job_with(JobId id) {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& entry) { return entry.second.record().job == id; });
  return it == jobs_.end() ? nullptr : &it->second;
}

CoordinatedJob* CoordinatorCore::job_in_view(JobId id, ViewId view) {
  CoordinatedJob* job = job_with(id);
  return job && job->in_view(view) ? job : nullptr;
}

// ---- Peers ----

void CoordinatorCore::on(PeerId from, const ServerHello& m, std::uint64_t now_ms) {
  Peers& peers = context_.peers;
  const std::string who = "server " + std::to_string(m.shard.value);
  if (const Status status = peers.check(m, now_ms); !status) return context_.refuse(from, status.error());
  if (peers.takes_over(m))
    lose_server(m.shard.value, {LossKind::kRestarted, who + " came back as a new process"}, now_ms);
  const bool was_there = peers.alive(m.shard.value) != nullptr;
  context_.given_up.erase(m.shard.value);
  const Peers::Met met = peers.meet(from, m, now_ms);
  context_.copies.meet(m.shard.value, m.copies);
  context_.parts.holders().here(m.incarnation, m.parts);
  if (!met.known) {
    context_.output.log(who + " is there with " + std::to_string(m.lane_endpoints.size()) + " lanes");
    if (!context_.copies.searching() || m.copies.empty()) report_strangers(m.shard.value, m);
  }
  for (auto& [name, job] : jobs_) job.on(m, met.known && was_there, now_ms);
  context_.output.send(from, HelloReply{context_.options.incarnation, context_.options.term});
  context_.send_servers(peers.book());
  // A server that missed the reply sends its hello again; then it has missed the messages after the reply, too.
  if (met.moved) moved(*peers.alive(m.shard.value), now_ms);
  search(now_ms);
  for (auto& [name, job] : jobs_) open_if_complete(job, now_ms);
}

void CoordinatorCore::on(PeerId from, const WorkerHello& m, std::uint64_t now_ms) {
  Peers& peers = context_.peers;
  if (const Status status = peers.check(m); !status) return context_.refuse(from, status.error());
  if (const auto outlived = peers.outlived_by(m)) {
    lose_worker(*outlived, {LossKind::kRestarted, "worker " + m.name + " came back as a new process"}, now_ms);
  }
  if (!peers.meet(from, m, now_ms).known) {
    const std::string name = peers.name_of(m.incarnation);
    if (name != m.name) {
      context_.output.log("two workers are called " + m.name + "; the new one is shown as " + name +
                              ": give each a name of its own ([worker] name)",
                          LogLevel::kWarning);
    }
    context_.output.log("worker " + name + " is there");
  }
  context_.output.send(from, HelloReply{context_.options.incarnation, context_.options.term});
}

void CoordinatorCore::on(PeerId from, const Heartbeat& m, std::uint64_t now_ms) {
  Peers& peers = context_.peers;
  // A peer that reconnected has a new PeerId: its incarnation identifies it.
  peers.drain_moved(m.incarnation, from);
  if (Peers::Worker* worker = peers.worker_with(m.incarnation)) {
    beat(*worker, from, m, now_ms);
  } else if (Peers::Server* server = peers.server_with(m.incarnation)) {
    beat(*server, from, m, now_ms);
  } else {
    // Unknown here: we restarted, gave it up, or its index was taken over. Incarnation 0 belongs to no process: the
    // peer sends its hello again, and with it drops the jobs that it took for running.
    return context_.output.send(from, HeartbeatReply{0});
  }
  context_.output.send(from, HeartbeatReply{context_.options.incarnation});
}

void CoordinatorCore::beat(Peers::Server& server, PeerId from, const Heartbeat& m, std::uint64_t now_ms) {
  const std::uint16_t index = server.hello.shard.value;
  note_clock(server.clock, "server " + std::to_string(index), m);
  if (Peers::hear(server, from, m, now_ms)) {
    context_.output.send(from, context_.peers.book());
    moved(server, now_ms);
  }
  context_.checkpoints.heard(index, m.moved);
  for (const JobProgress& progress : m.progress) {
    CoordinatedJob* job = job_in_view(progress.job, progress.view);
    if (job && job->servers() != 0) job->on_progress(index, progress, now_ms);
  }
}

// Messages may be lost with the server's old connection, in both directions.
void CoordinatorCore::moved(const Peers::Server& server, std::uint64_t now_ms) {
  const std::uint16_t index = server.hello.shard.value;
  for (auto& [name, job] : jobs_) job.tell_again(server, now_ms);
  context_.checkpoints.server_lost(index, "the connection to server " + std::to_string(index) + " broke", now_ms);
}

void CoordinatorCore::note_clock(PeerClock& clock, const std::string& whose, const Heartbeat& m) {
  if (clock.note(m.clock_ms, context_.output.wall_ms()))
    context_.output.log("the clock of " + whose + " is " + clock.in_words(), LogLevel::kWarning);
}

void CoordinatorCore::beat(Peers::Worker& worker, PeerId from, const Heartbeat& m, std::uint64_t now_ms) {
  note_clock(worker.clock, "worker " + worker.hello.name, m);
  if (Peers::hear(worker, from, m, now_ms)) {
    for (auto& [name, job] : jobs_) job.tell_again(m.incarnation);
  }
  for (const JobProgress& progress : m.progress) {
    CoordinatedJob* job = job_in_view(progress.job, progress.view);
    const auto member = job ? member_of(job->members(), m.incarnation) : JobMembers::const_iterator();
    if (!job || member == job->members().end()) {
      // The message to the worker at the end of that view did not arrive.
      context_.output.send(from, StopJob{progress.job, progress.view, StopKind::kRestart,
                                         Round(progress.min_version.value), "the view is over"});
    } else if (job->servers() == 0) {
      job->on_progress(member->first, progress, now_ms);
    }
  }
  for (const NodePace& pace : m.paces) {
    if (CoordinatedJob* job = job_in_view(pace.job, pace.view)) job->on(worker, pace);
  }
}

void CoordinatorCore::on(PeerId from, const DrainRequest& m, std::uint64_t now_ms) {
  Peers& peers = context_.peers;
  const Peers::Worker* worker = peers.worker(m.incarnation);
  const Peers::Server* server = peers.server_with(m.incarnation);
  // The process was given up, or never was there: nothing is open for its sake.
  if (!worker && !server) return context_.output.send(from, DrainDone{});
  const bool leaves = server && !server->leaves;
  peers.await_drain(m.incarnation, from);
  if (leaves) {
    for (auto& [name, job] : jobs_) job.server_leaves(server->hello.shard.value, now_ms);
  }
  if (!worker) return;  // answer_drains() stops what it has a part in
  for (auto& [name, job] : jobs_) {
    if (job.forget_worker(m.incarnation)) open_if_complete(job, now_ms);
    job.worker_stops(m.incarnation, "worker " + worker->hello.name, now_ms);
  }
}

void CoordinatorCore::answer_drains(std::uint64_t now_ms) {
  for (const auto& [index, server] : context_.peers.servers()) {
    if (!server.alive || !server.leaves) continue;
    // Again: a view may have begun or ended since it asked.
    for (auto& [name, job] : jobs_) job.server_stops(index, now_ms);
  }
  const auto busy = [&](std::uint64_t incarnation) {
    const bool worker = context_.peers.worker(incarnation) != nullptr;
    const Peers::Server* server = context_.peers.server_with(incarnation);
    if (context_.parts.needs(incarnation)) return true;
    return std::ranges::any_of(jobs_, [&](const auto& entry) {
      const CoordinatedJob& job = entry.second;
      if (!worker) return server && job.needs_server(server->hello.shard.value);
      return member_of(job.members(), incarnation) != job.members().end();
    });
  };
  for (const PeerId peer : context_.peers.take_drained(busy)) context_.output.send(peer, DrainDone{});
}

std::optional<std::string> CoordinatorCore::key_at(PeerId peer) {
  if (const Peers::Worker* worker = context_.peers.worker_at(peer)) return worker->hello.key;
  if (const Peers::Server* server = context_.peers.server_at(peer)) return server->hello.key;
  return std::nullopt;
}

std::optional<std::string> CoordinatorCore::key_of(std::uint64_t incarnation) {
  if (const Peers::Worker* worker = context_.peers.worker(incarnation)) return worker->hello.key;
  if (const Peers::Server* server = context_.peers.server_with(incarnation)) return server->hello.key;
  return std::nullopt;
}

void CoordinatorCore::expel(const std::string& key, const std::string& reason, std::uint64_t now_ms) {
  diagnoses_.expel(key);
  std::vector<std::pair<std::uint64_t, PeerId>> workers;
  for (const auto& [incarnation, worker] : context_.peers.workers()) {
    if (worker.hello.key == key) workers.emplace_back(incarnation, worker.peer);
  }
  std::vector<std::pair<std::uint16_t, PeerId>> servers;
  for (const auto& [index, server] : context_.peers.servers()) {
    if (server.alive && server.hello.key == key) servers.emplace_back(index, server.peer);
  }
  for (const auto& [incarnation, peer] : workers) {
    context_.refuse(peer, {ErrorCode::kInvalidArgument, reason});
    for (auto& [name, job] : jobs_) job.expel(incarnation);
    lose_worker(incarnation, {LossKind::kRevoked, reason}, now_ms);
  }
  for (const auto& [index, peer] : servers) {
    context_.refuse(peer, {ErrorCode::kInvalidArgument, reason});
    lose_server(index, {LossKind::kRevoked, reason}, now_ms);
  }
}

void CoordinatorCore::lose_server(std::uint16_t index, const Loss& loss, std::uint64_t now_ms) {
  const std::string who = "server " + std::to_string(index);
  ++losses_.servers[static_cast<std::size_t>(loss.kind)];
  const std::uint64_t incarnation = context_.peers.servers().at(index).hello.incarnation;
  context_.peers.lose_server(index);
  context_.parts.server_lost(incarnation, now_ms);
  context_.copies.lose(index);
  context_.send_servers(context_.peers.book());
  context_.output.log("lost " + who + ": " + loss.why, LogLevel::kWarning);
  context_.checkpoints.server_lost(index, who + " was lost: " + loss.why, now_ms);
  for (auto& [name, job] : jobs_) job.server_lost(index, loss.why, now_ms);
}

void CoordinatorCore::lose_worker(std::uint64_t incarnation, const Loss& loss, std::uint64_t now_ms) {
  context_.output.log("lost worker " + context_.peers.name_of(incarnation) + ": " + loss.why, LogLevel::kWarning);
  ++losses_.workers[static_cast<std::size_t>(loss.kind)];
  context_.peers.lose_worker(incarnation);
  context_.parts.worker_lost(incarnation, now_ms);
  for (auto& [name, job] : jobs_) {
    job.worker_lost(incarnation, loss.why, now_ms);
    if (job.forget_worker(incarnation)) open_if_complete(job, now_ms);
  }
}

void CoordinatorCore::tick(std::uint64_t now_ms) {
  if (context_.began_ms == 0) context_.began_ms = now_ms;
  const Peers& peers = context_.peers;
  const std::string unheard = " has not been heard for " + std::to_string(context_.options.peer_timeout_ms) + " ms";
  for (const std::uint16_t index : peers.silent_servers(now_ms)) {
    lose_server(index, {LossKind::kSilent, "server " + std::to_string(index) + unheard}, now_ms);
  }
  for (const std::uint64_t incarnation : peers.silent_workers(now_ms)) {
    lose_worker(incarnation, {LossKind::kSilent, "worker " + peers.name_of(incarnation) + unheard}, now_ms);
  }
  tick_copies(now_ms);
  context_.refusals.tick(now_ms);
  context_.parts.tick(now_ms);
  for (auto& [name, job] : jobs_) {
    job.tick(now_ms);
    if (job.checkpoint_due(now_ms)) save_scheduled(job, now_ms);
    open_if_complete(job, now_ms);  // no longer with whoever is still missing
  }
  for (auto& [name, job] : jobs_) look_at_servers(job, now_ms);
  std::erase_if(jobs_, [](const auto& entry) { return entry.second.never_opened(); });
  context_.checkpoints.tick(now_ms);
  look_at_trace(now_ms);
  diagnoses_.tick(now_ms);
  answer_drains(now_ms);
}

void CoordinatorCore::drain(std::uint64_t now_ms) {
  context_.draining = true;
  const std::string who =
      context_.options.servers == 0 ? "the worker that is the coordinator" : context_.peers.home_in_words();
  for (auto& [name, job] : jobs_) job.drain(who, now_ms);
}

bool CoordinatorCore::idle() const {
  const auto busy = [](const auto& entry) {
    const CoordinatedJob& job = entry.second;
    return job.needs_servers() || job.saves();
  };
  return context_.removing.empty() && !context_.parts.holders().copies() && std::ranges::none_of(jobs_, busy);
}

void CoordinatorCore::saved(JobId id, const Status& status, std::uint64_t now_ms) {
  const auto found = std::ranges::find_if(jobs_, [&](const auto& entry) { return entry.second.saves(id); });
  if (found == jobs_.end()) {
    context_.checkpoints.saved(id, status, now_ms);
  } else {
    found->second.saved(status, now_ms);
    open_if_complete(found->second, now_ms);
  }
  answer_drains(now_ms);
}

// ---- Jobs ----

void CoordinatorCore::on(PeerId from, const JoinJob& m, std::uint64_t now_ms) {
  const Result<JobConfig> config = job_from_json(m.job_json);
  if (!config) return context_.refuse(from, config.error(), {}, m.number);
  const std::string& name = config->name;
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    context_.refuse(from, {code, why}, name, m.number);
  };
  const Peers::Worker* worker = context_.peers.worker_at(from);
  if (!worker) return refuse(ErrorCode::kUnavailable, "this worker has not said hello yet; attach again");
  if (context_.draining) {
    return refuse(ErrorCode::kStopped, "the cluster is being stopped; attach again when it is back");
  }
  if (context_.options.servers == 0 && on_servers(*config)) {
    return refuse(ErrorCode::kTopology,
                  "job '" + name + "' has mode \"" + word(config->mode) +
                      "\", and this cluster has no servers: start servers and let the workers connect to server 0, or "
                      "set job.mode = \"allreduce\"");
  }
  if (const Status known = check_groups(*config, m.tensors); !known) {
    return refuse(known.error().code, known.error().message);
  }
  auto at = jobs_.find(name);
  const bool created = at == jobs_.end();
  const auto has_it = [&](const auto& entry) {
    return member_of(entry.second.members(), worker->hello.incarnation) != entry.second.members().end();
  };
  if (created && std::ranges::count_if(jobs_, has_it) >= kMaxJobsOfWorker) {
    return refuse(ErrorCode::kLimit, "worker " + worker->hello.name + " takes part in " +
                                         std::to_string(kMaxJobsOfWorker) + " jobs already; wait for one to end");
  }
  if (created) at = jobs_.try_emplace(name, context_, *config).first;
  if (const Status joined = join(at->second, m, *config, *worker, now_ms); !joined) {
    if (created) {
      jobs_.erase(at);
    } else {
      at->second.refused(m.node, joined.error().message);
    }
    return context_.refuse(from, joined.error(), name, m.number);
  }
  open_if_complete(at->second, now_ms);
}

Status CoordinatorCore::join(CoordinatedJob& job, const JoinJob& m, const JobConfig& config,
                             const Peers::Worker& worker, std::uint64_t now_ms) {
  if (Status possible = job.check(m); !possible) return possible;
  const auto outlived = job.outlived_by(m, worker, now_ms);
  if (!outlived) return tl::unexpected(outlived.error());
  if (*outlived) {
    lose_worker(**outlived, {LossKind::kRestarted, "another process of worker " + worker.called + " took its place"},
                now_ms);
  }
  return job.join(m, config, worker, now_ms);
}

void CoordinatorCore::open_if_complete(CoordinatedJob& job, std::uint64_t now_ms) {
  if (job.complete(now_ms)) job.open(fresh_id(), now_ms);
}

// No job may ever share another's id: servers and stores know jobs by nothing else.
JobId CoordinatorCore::fresh_id() {
  const auto taken = [&](const auto& entry) { return entry.second.knows(last_id_); };
  do {
    last_id_ = last_id_.next();
  } while (last_id_.value == 0 || std::ranges::any_of(jobs_, taken) || context_.checkpoints.restores(last_id_) ||
           context_.removing.contains(last_id_));
  return last_id_;
}

namespace {

// The answer to a worker that waits for the outcome of a view of a job that is unknown.
StopJob nobody_knows(const auto& m) {
  return {m.job, m.view, StopKind::kRestart, m.round, "nobody knows this job any more"};
}

}  // namespace

void CoordinatorCore::on(PeerId from, const LeaveJob& m, std::uint64_t now_ms) {
  const Peers::Worker* worker = context_.peers.worker_at(from);
  if (!worker) return;  // given up already, and the job has been told
  // Before JobWelcome the worker knows neither id nor view (both are 0), only the job's name.
  const auto found = std::ranges::find_if(jobs_, [&](const auto& entry) {
    const auto& [name, job] = entry;
    const auto at = job.members().find(m.node.value);
    if (at == job.members().end() || at->second.worker != worker->hello.incarnation) return false;
    return m.job.value == 0 ? name == m.name : job.record().job == m.job && job.record().view == m.view;
  });
  if (found != jobs_.end()) return found->second.on(*worker, m, now_ms);
  if (m.job.value == 0 || m.kind == LeaveKind::kFailed) return;
  if (CoordinatedJob* job = job_with(m.job)) return job->tell_outcome(worker->peer, m.view, m.round);
  // The job has another id since its chunks went to other servers: with the state of a round that this node had left at,
  // or a later one.
  const auto named = jobs_.find(m.name);
  const JobRecord* record = named == jobs_.end() ? nullptr : &named->second.record();
  if (record && record->initialised && record->committed >= m.round) {
    return context_.output.send(worker->peer, SnapshotDone{m.job, m.view, m.round, true});
  }
  context_.output.send(worker->peer, nobody_knows(m));
}

void CoordinatorCore::on(PeerId from, const SnapshotDone& m, std::uint64_t now_ms) {
  CoordinatedJob* job = job_with(m.job);
  if (const Peers::Worker* worker = context_.peers.worker_at(from)) {
    if (job) return job->on(*worker, m, now_ms);
    return context_.output.send(from, nobody_knows(m));
  }
  const Peers::Server* server = context_.peers.server_at(from);
  if (server && job) job->on(server->hello.shard.value, m, now_ms);
}

// ---- Status ----

std::vector<JobStatus> CoordinatorCore::jobs() const {
  std::vector<JobStatus> statuses;
  for (const auto& [name, job] : jobs_) statuses.push_back(job.status());
  return statuses;
}

const JobRecord* CoordinatorCore::record(const std::string& job) const {
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : &at->second.record();
}

std::vector<CoordinatorCore::PeerStatus> CoordinatorCore::peers() const {
  std::vector<PeerStatus> result;
  for (const auto& [index, server] : context_.peers.servers()) {
    result.push_back({"server", std::to_string(index), server.heard_ms, server.alive, server.bytes_in, server.bytes_out,
                      server.clock.in_words()});
  }
  for (const auto& [incarnation, worker] : context_.peers.workers()) {
    result.push_back({"worker", worker.hello.name, worker.heard_ms, true, worker.bytes_in, worker.bytes_out,
                      worker.clock.in_words()});
  }
  return result;
}

}  // namespace tributary

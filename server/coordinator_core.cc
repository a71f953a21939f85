// Peers, heartbeats, drains and dispatch; the life of a job is in coordinator_jobs.cc.
#include "server/coordinator_core.h"

#include <algorithm>
#include <utility>

#include "common/job_json.h"
#include "common/printed.h"

namespace tributary {
namespace {

constexpr std::uint64_t kMinPaceMs = 200;  // between the two heartbeats that a pace is taken from

}  // namespace

CoordinatorCore::CoordinatorCore(CoordinatorOptions options, std::vector<JobRecord> registry, CoordinatorOutput& output)
    : options_(options), output_(output) {
  for (JobRecord& record : registry) {
    Result<JobConfig> config = job_from_json(record.job_json);
    if (!config) {
      output_.log("job record " + std::to_string(record.job.value) + " is left aside: " + config.error().message,
                  LogLevel::kError);
      continue;
    }
    Job& job = jobs_[config->name];
    if (job.record.view > record.view) {
      job.older.insert(record.job);
      continue;
    }
    if (job.record.job.value != 0) job.older.insert(job.record.job);
    job.config = *config;
    job.record = std::move(record);
    job.last_stop = job.record.last_stop;
    job.began = job.record.view_nodes;  // or it was given up: who cannot know drops what nodes have kept
  }
}

void CoordinatorCore::on_message(PeerId from, const ControlMessage& message, std::uint64_t now_ms) {
  if (Worker* worker = worker_at(from)) worker->heard_ms = now_ms;
  if (Server* server = server_at(from)) server->heard_ms = now_ms;
  std::visit([&](const auto& m) { on(from, m, now_ms); }, message);
  answer_drains();
}

// Not logged here: whoever decodes messages limits the noise that garbage makes.
void CoordinatorCore::on_bad_message(PeerId from, const Error& error) {
  output_.send(from, ControlError{error.code, error.message, {}});
}

template <class Other>
void CoordinatorCore::on(PeerId from, const Other&, std::uint64_t) {
  refuse(from, ErrorCode::kMalformed, "this message is one that only the coordinator sends");
}

void CoordinatorCore::refuse(PeerId to, ErrorCode code, std::string message, const std::string& job) {
  log_refusal(to, code, job, "refused a peer: " + message);
  output_.send(to, ControlError{code, std::move(message), job});
}

void CoordinatorCore::log_refusal(PeerId to, ErrorCode code, const std::string& job, const std::string& line) {
  if (logged_refusals_.size() < kMaxLoggedRefusals && logged_refusals_.emplace(to, code, job).second) {
    output_.log(line, LogLevel::kWarning);
  }
}

CoordinatorCore::Worker* CoordinatorCore::worker_at(PeerId peer) {
  const auto it = std::ranges::find_if(workers_, [&](const auto& w) { return w.second.peer == peer; });
  return it == workers_.end() ? nullptr : &it->second;
}

CoordinatorCore::Server* CoordinatorCore::server_at(PeerId peer) {
  const auto it =
      std::ranges::find_if(servers_, [&](const auto& s) { return s.second.peer == peer && s.second.alive; });
  return it == servers_.end() ? nullptr : &it->second;
}

bool CoordinatorCore::all_servers() const {
  return servers_.size() == options_.servers &&
         std::ranges::all_of(servers_, [](const auto& s) { return s.second.alive; });
}

void CoordinatorCore::on(PeerId from, const ServerHello& m, std::uint64_t now_ms) {
  const std::string who = "server " + std::to_string(m.shard.value);
  if (m.servers != options_.servers || m.shard.value >= options_.servers) {
    return refuse(from, ErrorCode::kTopology,
                  who + " is configured for a cluster of " + std::to_string(m.servers) +
                      " servers, the coordinator for " + std::to_string(options_.servers) +
                      "; make [server] index and servers agree in all configuration files");
  }
  if (m.lane_endpoints.empty()) return refuse(from, ErrorCode::kInvalidArgument, who + " names no lane");
  if (!is_bandwidth(m.bandwidth)) {
    return refuse(from, ErrorCode::kInvalidArgument,
                  who + " has bandwidth " + printed("%g", m.bandwidth) +
                      "; [server] bandwidth must be a number from 0.001 to 1e15");
  }
  Server& server = servers_[m.shard.value];
  const bool known = server.hello.incarnation == m.incarnation;
  if (server.alive && !known) {
    const bool outlived = !m.exclusive.empty() && m.exclusive == server.hello.exclusive;
    if (!outlived && now_ms < server.heard_ms + options_.peer_timeout_ms / 4) {
      // Two processes with one index, or a quick restart. A live one is heard again and keeps its place; a dead one
      // stays silent, and the newcomer, which repeats its hello, takes over.
      if (std::exchange(server.rival, m.incarnation) != m.incarnation) server.rival_ms = now_ms;
      if (server.heard_ms >= server.rival_ms + options_.peer_timeout_ms / 4) {
        return refuse(from, ErrorCode::kTopology,
                      who +
                          " is there already as another process, which is alive: it has been heard since this one "
                          "came; give each server its own [server] index");
      }
      return refuse(
          from, ErrorCode::kUnavailable,
          who + " is there already as another process, heard " + std::to_string(now_ms - server.heard_ms) +
              " ms ago; if that one is gone, this one takes its place in a moment, else give each server its own "
              "[server] index");
    }
    lose_server(m.shard.value, who + " came back as a new process", now_ms);
  }
  if (!known) {
    output_.log(who + " is there with " + std::to_string(m.lane_endpoints.size()) + " lanes");
    note_strangers(m);
  }
  // It says hello again if it never heard that it is known; then it has missed what was said after that, too.
  const bool elsewhere = known && server.peer != from;
  server = Server{from, m, now_ms, true};
  note_kept(m, known);
  output_.send(from, HelloReply{options_.incarnation});
  if (elsewhere) moved(server);
  for (auto& [name, job] : jobs_) open_if_complete(job, now_ms);
}

void CoordinatorCore::on(PeerId from, const WorkerHello& m, std::uint64_t now_ms) {
  if (!is_bandwidth(m.bandwidth)) {
    return refuse(from, ErrorCode::kInvalidArgument,
                  "worker " + m.name + " has bandwidth " + printed("%g", m.bandwidth) +
                      "; [worker] bandwidth must be a number from 0.001 to 1e15");
  }
  const auto known = workers_.find(m.incarnation);
  const auto outlived = std::ranges::find_if(workers_, [&](const auto& entry) {
    return entry.first != m.incarnation && !m.exclusive.empty() && entry.second.hello.exclusive == m.exclusive;
  });
  if (outlived != workers_.end()) {
    lose_worker(outlived->first, "worker " + m.name + " came back as a new process", now_ms);
  }
  Worker worker{from, m, now_ms, now_ms, m.name};
  if (known == workers_.end()) {
    worker.hello.name = name_apart(m, now_ms);
    output_.log("worker " + worker.hello.name + " is there");
  } else {
    worker.hello.name = known->second.hello.name;
    worker.since_ms = known->second.since_ms;
  }
  workers_[m.incarnation] = std::move(worker);
  output_.send(from, HelloReply{options_.incarnation});
}

// Two workers may well have one name, as two of one host have if nobody gave them others. (One that has not been heard
// for a while may be what the newcomer was before.)
std::string CoordinatorCore::name_apart(const WorkerHello& m, std::uint64_t now_ms) const {
  const auto taken = [&](const std::string& name) {
    return std::ranges::any_of(workers_, [&](const auto& entry) {
      const Worker& other = entry.second;
      return other.hello.name == name && now_ms < other.heard_ms + options_.peer_timeout_ms / 4;
    });
  };
  if (!taken(m.name)) return m.name;
  std::string name = m.name;
  for (std::size_t number = 2; taken(name); ++number) name = m.name + " (" + std::to_string(number) + ")";
  output_.log("two workers are called " + m.name + "; the new one is shown as " + name +
                  ": give each a name of its own ([worker] name)",
              LogLevel::kWarning);
  return name;
}

void CoordinatorCore::on(PeerId from, const Heartbeat& m, std::uint64_t now_ms) {
  // A peer that reconnected has a new PeerId: its incarnation says who it is.
  if (const auto waiter = drain_waiters_.find(m.incarnation); waiter != drain_waiters_.end()) waiter->second = from;
  if (const auto worker = workers_.find(m.incarnation); worker != workers_.end()) {
    worker->second.heard_ms = now_ms;
    if (std::exchange(worker->second.peer, from) != from) moved(worker->first, worker->second);
    for (const JobProgress& progress : m.progress) {
      Job* job = job_in_view(progress.job, progress.view);
      if (!job ||
          std::ranges::none_of(job->members, [&](const auto& entry) { return entry.second.worker == m.incarnation; })) {
        // What it was told at the end of that view did not arrive.
        output_.send(from, StopJob{progress.job, progress.view, StopKind::kRestart, Round(progress.min_version.value),
                                   "the view is over"});
        continue;
      }
      if (job->on_servers()) continue;
      for (const auto& [node, member] : job->members) {
        if (member.worker == m.incarnation) note_progress(job->pace[node], job->start, progress, now_ms);
      }
    }
    for (const NodePace& pace : m.paces) note_pace(m.incarnation, pace);
  } else if (const auto server = std::ranges::find_if(
                 servers_,
                 [&](const auto& s) { return s.second.alive && s.second.hello.incarnation == m.incarnation; });
             server != servers_.end()) {
    server->second.heard_ms = now_ms;
    if (std::exchange(server->second.peer, from) != from) {
      moved(server->second);
      fail_checkpoints_with(server->first, "the connection to server " + std::to_string(server->first) + " broke",
                            now_ms);
    }
    for (const JobProgress& progress : m.progress) {
      Job* job = job_in_view(progress.job, progress.view);
      if (!job || !job->on_servers()) continue;
      if (job->preparing_since_ms && progress.prepared) job->prepared.insert(server->first);
      note_progress(job->pace[server->first], job->start, progress, now_ms);
    }
  } else {
    // Unknown here: we restarted, gave it up, or its index was taken over. Incarnation 0 is nobody's: it makes the peer
    // say hello again, and with it drop what it thought was running.
    output_.send(from, HeartbeatReply{0});
    return;
  }
  output_.send(from, HeartbeatReply{options_.incarnation});
}

// Who lags is told when it begins and when it is over.
void CoordinatorCore::note_pace(std::uint64_t worker, const NodePace& pace) {
  Job* job = job_in_view(pace.job, pace.view);
  if (!job || (job->phase != Phase::kRunning && job->phase != Phase::kStopping)) return;
  const auto member = job->members.find(pace.node.value);
  if (member == job->members.end() || member->second.worker != worker) return;
  const bool gets_on = std::exchange(member->second.answers, pace.answers) != pace.answers;
  if (job->phase == Phase::kStopping) return gets_on ? await_longer(*job) : void();
  if (!job->stragglers) job->stragglers.emplace(has_deadline(job->config));
  const auto news = job->stragglers->note(pace);
  if (!news) return;
  const std::string who =
      "node " + std::to_string(news->node) + " of " + in_words(*job) + " (worker " + workers_[worker].hello.name + ") ";
  output_.log(who + (news->lag ? tributary::in_words(*news->lag) : "has caught up with the others"),
              news->lag ? LogLevel::kWarning : LogLevel::kInfo);
}

// Rounds that nodes push again are made as fast as the network goes, and tell nothing of what comes after `start`.
void CoordinatorCore::note_progress(Pace& pace, Round start, const JobProgress& progress, std::uint64_t now_ms) {
  pace.said_ms = now_ms;
  if (progress.writing) pace.wrote_ms = now_ms;
  if (progress.max_version < pace.max_version) return;  // overtaken by a newer one on a newer connection
  if (pace.at_ms != 0) {
    // A heartbeat that only introduces another message may follow the last one at once: too close to tell a rate.
    if (now_ms < pace.at_ms + kMinPaceMs) return;
    const std::uint64_t made =
        std::max(progress.max_version.value, start.value) - std::max(pace.max_version.value, start.value);
    pace.rounds_per_ms = static_cast<double>(made) / static_cast<double>(now_ms - pace.at_ms);
    pace.measured = true;
  }
  pace.min_version = progress.min_version;
  pace.max_version = progress.max_version;
  pace.at_ms = now_ms;
}

// A server whose connection was renewed may have lost what was under way to it. What it can be told twice, it is.
void CoordinatorCore::moved(const Server& server) {
  const std::uint16_t shard = server.hello.shard.value;
  for (const auto& [name, job] : jobs_) {
    if (job.phase == Phase::kOpening && !job.ready.contains(shard)) {
      output_.send(server.peer, open_message(job, shard));
      continue;
    }
    // It may hold rounds back until it hears of a snapshot.
    const bool tell = job.phase == Phase::kRunning && job.on_servers() && job.record.initialised && !job.untold;
    if (tell) output_.send(server.peer, SnapshotCommit{job.record.job, job.record.committed});
    if (job.preparing_since_ms && !job.prepared.contains(shard)) {
      output_.send(server.peer, PrepareSnapshot{job.record.job, job.record.view});
    }
    if (job.phase == Phase::kRunning && job.snapshot && !job.snapshot_done.contains(shard)) {
      output_.send(server.peer, SnapshotAt{job.record.job, job.record.view, *job.snapshot});
    } else if (job.phase == Phase::kStopping && job.snapshot && !job.snapshot_done.contains(shard)) {
      output_.send(server.peer, stop_message(job));
    } else if ((job.phase == Phase::kIdle || job.phase == Phase::kGathering) && job.parking.contains(shard)) {
      // What it keeps of the last view is still to be said.
      output_.send(server.peer, cut_message(job));
    }
  }
}

// The same for a worker.
void CoordinatorCore::moved(std::uint64_t incarnation, const Worker& worker) {
  for (const auto& [name, job] : jobs_) {
    const auto member =
        std::ranges::find_if(job.members, [&](const auto& entry) { return entry.second.worker == incarnation; });
    if (member == job.members.end()) continue;
    if (job.phase == Phase::kRunning && !member->second.left) {
      welcome_again(job, member->first);
      if (job.stop_requested) output_.send(worker.peer, StopRequest{job.record.job, job.record.view, job.last_stop});
      if (job.snapshot) output_.send(worker.peer, SnapshotAt{job.record.job, job.record.view, *job.snapshot});
    } else if (job.phase == Phase::kStopping && job.snapshot) {
      output_.send(worker.peer, stop_message(job));
    }
  }
}

void CoordinatorCore::on(PeerId from, const DrainRequest& m, std::uint64_t now_ms) {
  const bool worker = workers_.contains(m.incarnation);
  const bool server = std::ranges::any_of(
      servers_, [&](const auto& s) { return s.second.alive && s.second.hello.incarnation == m.incarnation; });
  // Somebody that was given up, or never was there: nothing is open for its sake.
  if (!worker && !server) return output_.send(from, DrainDone{});
  drain_waiters_[m.incarnation] = from;
  std::string who = worker ? "worker " + workers_[m.incarnation].hello.name : std::string();
  for (const auto& [index, candidate] : servers_) {
    if (candidate.hello.incarnation == m.incarnation) who = "server " + std::to_string(index);
  }
  for (auto& [name, job] : jobs_) {
    if (worker) await_not(job, m.incarnation, now_ms);
    const auto member =
        std::ranges::find_if(job.members, [&](const auto& entry) { return entry.second.worker == m.incarnation; });
    if (worker ? member == job.members.end() : !job.on_servers()) continue;
    if (job.phase == Phase::kRunning) {
      // In an elastic job the worker alone asks its trainers to stop.
      if (worker && goes_on_without(job, member->first)) {
        member->second.leaving = true;
      } else {
        request_stop(job, who + " was told to stop");
      }
    } else if (worker && (job.phase == Phase::kOpening || job.phase == Phase::kGathering)) {
      lose_member(job, member->first, who + " was told to stop", now_ms);
    } else if (job.phase == Phase::kOpening) {
      regather(job, who + " was told to stop", now_ms);
    }
  }
}

void CoordinatorCore::answer_drains() {
  for (auto waiter = drain_waiters_.begin(); waiter != drain_waiters_.end();) {
    const bool busy = std::ranges::any_of(jobs_, [&](const auto& entry) {
      const Job& job = entry.second;
      if (job.phase == Phase::kIdle || job.phase == Phase::kGathering) return false;
      const bool member = std::ranges::any_of(
          job.members, [&](const auto& member_entry) { return member_entry.second.worker == waiter->first; });
      return member || (!workers_.contains(waiter->first) && job.on_servers());  // all servers have a part in those
    });
    if (busy) {
      ++waiter;
      continue;
    }
    output_.send(waiter->second, DrainDone{});
    waiter = drain_waiters_.erase(waiter);
  }
}

void CoordinatorCore::lose_server(std::uint16_t index, const std::string& reason, std::uint64_t now_ms) {
  Server& server = servers_[index];
  server.alive = false;
  drain_waiters_.erase(server.hello.incarnation);
  output_.log("lost server " + std::to_string(index) + ": " + reason, LogLevel::kWarning);
  fail_checkpoints_with(index, "server " + std::to_string(index) + " was lost: " + reason, now_ms);
  for (auto& [name, job] : jobs_) {
    if (!job.on_servers()) continue;
    job.kept.erase(index);
    job.parking.erase(index);
    if (job.phase == Phase::kOpening) {
      regather(job, reason, now_ms);
    } else if (job.phase == Phase::kRunning) {
      restart(job, reason, now_ms);
    } else if (job.phase == Phase::kStopping && shards_of(job).contains(index) && !job.snapshot_done.contains(index)) {
      restart(job, reason, now_ms);  // its part of the final state is lost
    }
  }
}

void CoordinatorCore::lose_worker(std::uint64_t incarnation, const std::string& reason, std::uint64_t now_ms) {
  output_.log("lost worker " + workers_[incarnation].hello.name + ": " + reason, LogLevel::kWarning);
  workers_.erase(incarnation);
  drain_waiters_.erase(incarnation);
  for (auto& [name, job] : jobs_) {
    const auto member =
        std::ranges::find_if(job.members, [&](const auto& entry) { return entry.second.worker == incarnation; });
    if (member != job.members.end() && (!member->second.left || job.phase == Phase::kStopping)) {
      lose_member(job, member->first, "node " + std::to_string(member->first) + " is lost: " + reason, now_ms);
    }
    await_not(job, incarnation, now_ms);
  }
}

// A node that will contribute nothing more, without having left in good order.
void CoordinatorCore::lose_member(Job& job, std::uint32_t node, const std::string& reason, std::uint64_t now_ms) {
  if (job.phase == Phase::kGathering) {
    job.members.erase(node);
    if (job.members.empty()) become_idle(job, now_ms);
  } else if (job.phase == Phase::kOpening) {
    job.members.erase(node);
    regather(job, reason, now_ms);
  } else if (job.phase == Phase::kRunning) {
    // A node that finished has every answer of its last round and pushes no more: every chunk is there, and that state
    // is kept.
    const auto finished =
        std::ranges::find_if(job.members, [](const auto& entry) { return entry.second.left.has_value(); });
    if (finished == job.members.end()) {
      restart(job, reason, now_ms);
      job.expected.erase(node);
      return;
    }
    begin_stop(job, StopKind::kStopped, stop_round(job, finished->second.left->round), reason, now_ms);
  } else if (job.phase == Phase::kStopping && !job.on_servers() && node == job.members.begin()->first) {
    job.stop_failed = true;
    job.not_saved = reason + ", and had not said that its last checkpoint is written";
    end_unwritten(job, now_ms);
  }
}

// Its nodes left before it had an id: nothing of it is anywhere.
bool CoordinatorCore::never_opened(const Job& job) {
  return job.record.job.value == 0 && job.members.empty() && job.kept.empty() && job.older.empty() && !job.restoring;
}

void CoordinatorCore::tick(std::uint64_t now_ms) {
  const auto silent = [&](std::uint64_t heard_ms) { return now_ms > heard_ms + options_.peer_timeout_ms; };
  const std::string unheard = " has not been heard for " + std::to_string(options_.peer_timeout_ms) + " ms";
  for (auto& [index, server] : servers_) {
    if (server.alive && silent(server.heard_ms))
      lose_server(index, "server " + std::to_string(index) + unheard, now_ms);
  }
  std::vector<std::uint64_t> lost;
  for (const auto& [incarnation, worker] : workers_) {
    if (silent(worker.heard_ms)) lost.push_back(incarnation);
  }
  for (const std::uint64_t incarnation : lost) {
    lose_worker(incarnation, "worker " + workers_[incarnation].hello.name + unheard, now_ms);
  }
  if (logged_refusals_.empty() || forget_refusals_ms_ == 0) forget_refusals_ms_ = now_ms + kRefusalLogMs;
  if (now_ms >= forget_refusals_ms_) logged_refusals_.clear();
  for (auto& [name, job] : jobs_) tick_job(job, now_ms);
  std::erase_if(jobs_, [](const auto& entry) { return never_opened(entry.second); });
  tick_checkpoints(now_ms);
  answer_drains();
}

void CoordinatorCore::drain(std::uint64_t now_ms) {
  draining_ = true;
  const std::string who = options_.servers == 0 ? "the worker that is the coordinator" : "server 0";
  for (auto& [name, job] : jobs_) {
    if (job.phase == Phase::kRunning) request_stop(job, who + " was told to stop");
    if (job.phase != Phase::kGathering && job.phase != Phase::kOpening) continue;
    send_members(job,
                 ControlError{ErrorCode::kStopped, "the cluster is being stopped; attach again when it is back", name});
    job.members.clear();
    regather(job, who + " was told to stop", now_ms);
  }
}

bool CoordinatorCore::idle() const {
  return std::ranges::all_of(jobs_, [](const auto& entry) {
    return entry.second.phase == Phase::kIdle || entry.second.phase == Phase::kGathering;
  });
}

std::vector<CoordinatorCore::JobStatus> CoordinatorCore::jobs() const {
  static constexpr const char* kNames[] = {"idle", "gathering", "opening", "running", "stopping"};
  std::vector<JobStatus> result;
  for (const auto& [name, job] : jobs_) {
    JobStatus status;
    status.record = job.record;
    status.recorded = !job.unrecorded;
    status.phase = kNames[static_cast<int>(job.phase)];
    status.nodes = job.nodes;
    status.joined = static_cast<std::uint32_t>(job.members.size());
    status.last_stop = job.last_stop;
    status.not_saved = job.not_saved;
    status.placement = job.placement;
    if (job.phase == Phase::kGathering) {
      status.waiting_for = awaited(job);
      for (std::uint16_t index = 0; job.on_servers() && index < options_.servers; ++index) {
        const auto server = servers_.find(index);
        if (server == servers_.end() || !server->second.alive) status.waiting_for += " server " + std::to_string(index);
      }
    }
    if (job.stragglers && job.phase == Phase::kRunning) {
      status.paces = job.stragglers->nodes();
      for (const auto& [node, member] : job.members) {
        const auto worker = workers_.find(member.worker);
        if (worker != workers_.end()) status.workers[node] = worker->second.hello.name;
      }
    }
    bool first = true;
    for (const auto& [shard, pace] : job.pace) {
      status.min_version = first ? pace.min_version : std::min(status.min_version, pace.min_version);
      status.max_version = std::max(status.max_version, pace.max_version);
      first = false;
    }
    // Of a job that does not run nobody has more than what is kept.
    if (job.phase == Phase::kIdle || job.phase == Phase::kGathering) {
      status.min_version = status.max_version = Version(job.record.committed.value);
    }
    result.push_back(std::move(status));
  }
  return result;
}

std::vector<CoordinatorCore::PeerStatus> CoordinatorCore::peers() const {
  std::vector<PeerStatus> result;
  for (const auto& [index, server] : servers_) {
    result.push_back({"server", std::to_string(index), server.heard_ms, server.alive});
  }
  for (const auto& [incarnation, worker] : workers_) {
    result.push_back({"worker", worker.hello.name, worker.heard_ms, true});
  }
  return result;
}

}  // namespace tributary

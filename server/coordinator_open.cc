// How a view of a job begins in the coordinator: workers join, the state is chosen, shards open. Where its chunks go is
// in coordinator_place.cc.
#include <algorithm>
#include <iterator>
#include <tuple>

#include "common/assert.h"
#include "common/job_json.h"
#include "common/redo_plan.h"
#include "kernels/tree_sum.h"
#include "server/coordinator_core.h"

namespace tributary {
namespace {

bool same_join(const JoinJob& a, const JoinJob& b) {
  const auto all = [](const JoinJob& m) {
    return std::tie(m.job_json, m.tensors, m.node, m.nodes, m.local_world_size, m.world_size, m.checkpoint_round,
                    m.redo_job, m.redo_first, m.redo_last, m.redo_capacity, m.redo_members, m.computes_with,
                    m.on_devices);
  };
  return all(a) == all(b);
}

}  // namespace

void CoordinatorCore::on(PeerId from, const JoinJob& m, std::uint64_t now_ms) {
  Result<JobConfig> config = job_from_json(m.job_json);
  if (!config) return refuse(from, config.error().code, config.error().message);
  const std::string name = config->name;
  const Worker* worker = worker_at(from);
  if (!worker) return refuse(from, ErrorCode::kUnavailable, "this worker has not said hello yet; attach again", name);
  if (draining_) {
    return refuse(from, ErrorCode::kStopped, "the cluster is being stopped; attach again when it is back", name);
  }
  if (options_.servers == 0 && on_servers(*config)) {
    return refuse(from, ErrorCode::kTopology,
                  "job '" + name + "' has mode \"" + word(config->mode) +
                      "\", and this cluster has no servers: start servers and let the workers connect to server 0, or "
                      "set job.mode = \"allreduce\"",
                  name);
  }
  const bool created = !jobs_.contains(name);
  Job& job = jobs_[name];
  if (created) job.config = *config;
  if (const Status admitted = admit(job, m, worker->hello.incarnation, now_ms); !admitted) {
    if (created) jobs_.erase(name);
    return refuse(from, admitted.error().code, admitted.error().message, name);
  }
  open_if_complete(job, now_ms);
}

Status CoordinatorCore::admit(Job& job, const JoinJob& m, std::uint64_t worker, std::uint64_t now_ms) {
  const std::string node = "node " + std::to_string(m.node.value);
  if (m.nodes == 0 || m.node.value >= m.nodes || m.local_world_size == 0 ||
      std::uint64_t{m.nodes} * m.local_world_size != m.world_size) {
    return fail(ErrorCode::kTopology, node + " of " + std::to_string(m.nodes) + " with " +
                                          std::to_string(m.local_world_size) + " ranks cannot be part of world_size " +
                                          std::to_string(m.world_size) +
                                          "; every node needs the same number of ranks (torchrun --nproc-per-node)");
  }
  if (m.nodes > kernels::kMaxSumInputs || m.local_world_size > kernels::kMaxSumInputs) {
    return fail(ErrorCode::kLimit, std::to_string(m.nodes) + " nodes with " + std::to_string(m.local_world_size) +
                                       " ranks each are more than the " + std::to_string(kernels::kMaxSumInputs) +
                                       " that one sum can have; use fewer nodes or fewer ranks per node");
  }
  if (m.redo_job.value != 0 && m.redo_last >= m.redo_first &&
      m.redo_last.value - m.redo_first.value >= m.redo_capacity) {
    return fail(ErrorCode::kMalformed, node + " of " + in_words(job) + " says that it keeps the pushes of rounds " +
                                           std::to_string(m.redo_first.value) + " to " +
                                           std::to_string(m.redo_last.value) + ", and of at most " +
                                           std::to_string(m.redo_capacity) +
                                           " rounds; start its worker and its trainers again");
  }
  if (job.restoring) {
    return fail(ErrorCode::kUnavailable, in_words(job) + " is being restored; attach again in a moment");
  }
  if (Status status = free_rank(job, m, worker, now_ms); !status) return status;
  if (Status status = same_as_others(job, m); !status) return status;
  // Said again, because nothing came of it: the join was lost, or the welcome.
  if (const auto held = job.members.find(m.node.value); held != job.members.end() && same_join(held->second.join, m)) {
    if (job.phase == Phase::kRunning) welcome_again(job, m.node.value);
    if (job.phase != Phase::kStopping) return {};
  }
  // What the same worker joined with before is void: its trainers attached anew.
  if (job.members.contains(m.node.value) && (job.phase == Phase::kOpening || job.phase == Phase::kRunning)) {
    lose_member(job, m.node.value, node + " attached again", now_ms);
    if (job.phase == Phase::kStopping) return stopping(job);
  }
  if (job.phase == Phase::kIdle) set_phase(job, Phase::kGathering, now_ms);
  if (job.members.empty()) {
    job.config = job_from_json(m.job_json).value();  // was read when it came
    await_members(job, now_ms);
  }
  if (job.members.empty() || !is_elastic(job.config)) job.nodes = m.nodes;
  job.members[m.node.value] = Member{worker, m, {}};
  return {};
}

Status CoordinatorCore::stopping(const Job& job) {
  return fail(ErrorCode::kUnavailable, in_words(job) + " is being stopped; attach again in a moment");
}

// May `worker` have the node rank that it asks for? kUnavailable if it may soon: workers ask again by themselves
// then.
Status CoordinatorCore::free_rank(Job& job, const JoinJob& m, std::uint64_t worker, std::uint64_t now_ms) {
  const std::string rank = "node rank " + std::to_string(m.node.value) + " of " + in_words(job);
  if (const auto held = job.members.find(m.node.value); held != job.members.end() && held->second.worker != worker) {
    // A daemon that was restarted is a new worker under the old name. If the old one is not heard beside it, it is
    // gone.
    const auto holder = workers_.find(held->second.worker);
    const Worker& me = workers_.at(worker);
    if (holder != workers_.end() && holder->second.called == me.called && holder->second.heard_ms <= me.since_ms) {
      if (now_ms < me.since_ms + options_.peer_timeout_ms / 4) {
        return fail(ErrorCode::kUnavailable, rank + " is held by another process of worker " + me.called +
                                                 "; if that one is gone, it is free in a moment");
      }
      lose_worker(holder->first, "another process of worker " + me.called + " took its place", now_ms);
    }
  }
  if (job.phase == Phase::kStopping) return stopping(job);
  const auto held = job.members.find(m.node.value);
  const bool mine = held != job.members.end() && held->second.worker == worker;
  if (held != job.members.end() && held->second.left) {  // whoever it was
    return fail(ErrorCode::kUnavailable,
                in_words(job) + " waits for its other nodes to finish; attach again in a moment");
  }
  const bool in_view = job.phase == Phase::kOpening || job.phase == Phase::kRunning;
  if (in_view && !mine && !is_elastic(job.config)) {
    return fail(ErrorCode::kTopology, rank + " is taken: the job is running with " + std::to_string(job.nodes) +
                                          " nodes; use another job name or wait for its end");
  }
  if (held != job.members.end() && !mine) {
    return fail(ErrorCode::kTopology, rank + " is taken by worker " + workers_[held->second.worker].hello.name +
                                          "; give every node its own node rank (torchrun --node-rank)");
  }
  const auto other = std::ranges::find_if(
      job.members, [&](const auto& entry) { return entry.second.worker == worker && entry.first != m.node.value; });
  if (other != job.members.end()) {
    return fail(ErrorCode::kTopology, "worker " + workers_[worker].hello.name + " is node " +
                                          std::to_string(other->first) + " of " + in_words(job) +
                                          " already and cannot be node " + std::to_string(m.node.value) +
                                          " too; start a worker daemon for every node");
  }
  return in_view && !mine ? let_in(job, m, now_ms) : Status{};
}

Status CoordinatorCore::same_as(const Job& job, const std::vector<TensorSpec>& tensors, const std::string& job_json,
                                const JoinJob& m) {
  const std::string node = "node " + std::to_string(m.node.value);
  if (const std::string difference = describe_difference(tensors, m.tensors); !difference.empty()) {
    return fail(ErrorCode::kLayoutMismatch, in_words(job) + " has other tensors than those of " + node + ": " +
                                                difference +
                                                "; start the same model on every node, or give the job another name");
  }
  if (const std::string difference = describe_config_difference(job_json, m.job_json); !difference.empty()) {
    return fail(ErrorCode::kConfigMismatch,
                in_words(job) + " was opened with another configuration than that of " + node + ": " + difference +
                    (job.record.initialised
                         ? "; what is kept of it goes on with the settings that it began with. To start over, "
                           "tributary up takes --fresh or another --base-dir"
                         : ""));
  }
  return {};
}

// What a job is was decided by its record, if there is one with state, and by the nodes that have joined.
Status CoordinatorCore::same_as_others(const Job& job, const JoinJob& m) const {
  const std::string node = "node " + std::to_string(m.node.value);
  const auto other = std::ranges::find_if(job.members, [&](const auto& entry) { return entry.first != m.node.value; });
  const JoinJob* theirs = other == job.members.end() ? nullptr : &other->second.join;
  if (theirs || has_progress(job.record)) {
    if (Status same = same_as(job, theirs ? theirs->tensors : job.record.tensors,
                              theirs ? theirs->job_json : job.record.job_json, m);
        !same) {
      return same;
    }
  }
  if (!theirs) return {};
  if ((m.nodes != theirs->nodes && !is_elastic(job.config)) || m.local_world_size != theirs->local_world_size) {
    return fail(ErrorCode::kTopology,
                node + " believes in " + std::to_string(m.nodes) + " nodes with " + std::to_string(m.local_world_size) +
                    " ranks each, but " + in_words(job) + " is gathering " + std::to_string(theirs->nodes) +
                    " nodes with " + std::to_string(theirs->local_world_size) + "; start torchrun alike on every node");
  }
  // A resumed job may go on for longer than before, but all of its nodes for equally long: one that finished early
  // would leave the others waiting for its gradients.
  const Result<JobConfig> a = job_from_json(theirs->job_json), b = job_from_json(m.job_json);
  TRIB_ASSERT(a && b);  // both were read when they came
  if (a->train.epochs != b->train.epochs || a->train.max_rounds != b->train.max_rounds) {
    const auto length = [](const JobConfig& config) {
      return "train.epochs = " + std::to_string(config.train.epochs) +
             ", train.max_rounds = " + std::to_string(config.train.max_rounds);
    };
    return fail(ErrorCode::kConfigMismatch, in_words(job) + " goes on for " + length(*a) +
                                                " on the other nodes, but for " + length(*b) + " on " + node +
                                                "; use the same job file on every node");
  }
  if (is_elastic(*a) != is_elastic(*b)) {
    return fail(ErrorCode::kConfigMismatch, in_words(job) + " has membership.on_worker_loss = \"" +
                                                word(a->membership.on_worker_loss) + "\" on the other nodes, but \"" +
                                                word(b->membership.on_worker_loss) + "\" on " + node +
                                                "; use the same job file on every node");
  }
  return {};
}

void CoordinatorCore::open_if_complete(Job& job, std::uint64_t now_ms) {
  if (draining_ || job.phase != Phase::kGathering || !gathered(job, now_ms)) return;
  if (job.on_servers() && (!all_servers() || !job.parking.empty())) return;
  const JoinJob& join = job.members.begin()->second.join;
  Result<JobConfig> config = job_from_json(join.job_json);
  TRIB_ASSERT(config);  // checked when it joined
  job.config = *config;
  JobRecord& record = job.record;
  // All servers may have the first snapshot, and the coordinator died before it could commit it.
  Status status;
  if (job.on_servers() && !record.initialised && record.job.value != 0) {
    status = choose_snapshot(job);
    if (status && record.initialised) status = same_as(job, record.tensors, record.job_json, join);
  }
  // A training that never got to a snapshot and has been changed is another training, whatever is left of it in the
  // stores.
  if (!record.initialised && (record.tensors != join.tensors || !same_training(record.job_json, join.job_json))) {
    const ViewId view = record.view;
    if (record.job.value != 0) job.older.insert(record.job);
    record = JobRecord{};
    record.view = view;
    record.tensors = join.tensors;
    job.kept.clear();
  }
  if (!status) return refuse_opening(job, status.error(), now_ms);
  const bool fresh = record.job.value == 0;
  if (fresh) record.job = fresh_id();
  record.job_json = join.job_json;
  settle_members(job);
  record.view = record.view.next();
  record.finished = false;
  status = choose_snapshot(job);
  choose_start(job);
  settle_first_round(job);
  if (status && !job.resume && job.kept_open.empty()) status = may_open_fresh(job);
  if (status) note_compute_kinds(job);
  if (status) status = lay_out(job);
  if (status) {
    status = output_.save(record);
    // Room on the disk may come back; nobody's place is lost until then.
    if (!status) status = fail(ErrorCode::kUnavailable, "the coordinator cannot record it: " + status.error().message);
  }
  if (!status) {
    if (fresh) record.job = JobId();  // nobody has heard of it
    return refuse_opening(job, status.error(), now_ms);
  }
  drop_older(job);
  // Later snapshots that only some shards have belong to rounds that this view will go through again.
  for (auto& [index, server] : servers_) {
    for (StoredJob& stored : server.hello.stored) {
      if (stored.job == record.job)
        std::erase_if(stored.snapshots, [&](Round r) { return !job.resume || r > job.resume_round; });
    }
  }
  job.kept.clear();  // the lanes', or nobody's, from now on
  job.ready.clear();
  keep_rank_states(job);
  job.checkpoint.reset();
  // How fast its shards go is no news: else a job that loses somebody every second would never have a snapshot.
  for (auto& [shard, pace] : job.pace) pace = {.rounds_per_ms = pace.rounds_per_ms, .measured = pace.measured};
  job.stragglers.reset();
  job.missed_snapshots = 0;
  job.gate.reset();
  if (has_gate(job.config)) job.gate.emplace(job.config.gate, job.record.owners.size());
  set_phase(job, Phase::kOpening, now_ms);
  output_.log(in_words(job) + " opens view " + std::to_string(record.view.value) + " with " +
              std::to_string(job.nodes) + " nodes, " + beginning_in_words(job));
  if (!job.on_servers()) return welcome(job, now_ms);
  for (const auto& [index, server] : servers_) {
    if (server.alive) output_.send(server.peer, open_message(job, index));
  }
}

// Said when the job's record first has two kinds, or a third, and so once in its life, whoever starts again.
void CoordinatorCore::note_compute_kinds(Job& job) {
  ComputeKinds& kinds = job.record.computed_with;
  if (!job.resume && job.kept_open.empty()) kinds.clear();
  const std::size_t known = kinds.size();
  for (const auto& [node, member] : job.members) {
    for (const std::string& kind : member.join.computes_with) add_kind(kinds, kind);
  }
  if (kinds.size() < 2 || kinds.size() == known) return;
  std::string text;
  for (const std::string& kind : kinds) {
    std::string nodes;
    for (const auto& [node, member] : job.members) {
      if (member.join.computes_with.contains(kind)) nodes += (nodes.empty() ? "" : ", ") + std::to_string(node);
    }
    text += (text.empty() ? "" : "; ") + kind + (nodes.empty() ? " before this view" : " on node " + nodes);
  }
  output_.log(in_words(job) + " is not computed with one kind of kernels: " + text +
                  ". They add in other orders, so its digest will not be that of a run on one kind; with OpenBLAS, the "
                  "same OPENBLAS_CORETYPE in the environment of all ranks makes them one",
              LogLevel::kWarning);
}

void CoordinatorCore::refuse_opening(Job& job, const Error& error, std::uint64_t now_ms) {
  log_refusal(PeerId(), error.code, job.config.name, in_words(job) + " cannot open: " + error.message);
  send_members(job, ControlError{error.code, error.message, job.config.name});
  become_idle(job, now_ms);
}

OpenJob CoordinatorCore::open_message(const Job& job, std::uint16_t shard) const {
  OpenJob open;
  open.job = job.record.job;
  open.view = job.record.view;
  open.job_json = job.record.job_json;
  open.tensors = job.record.tensors;
  open.chunk_elements = job.record.chunk_elements;
  open.owners = job.record.owners;
  open.nodes = job.nodes;
  open.resume = job.resume;
  open.resume_round = job.resume_round;
  open.kept = job.kept_open.contains(shard);
  return open;
}

// No job may ever share another's id: servers and stores know jobs by nothing else.
JobId CoordinatorCore::fresh_id() const {
  JobId id(options_.job_id_seed);
  const auto taken = [&](const auto& entry) { return entry.second.knows(id); };
  do {
    id = id.next();
  } while (id.value == 0 || std::ranges::any_of(jobs_, taken));
  return id;
}

// The newest snapshot that every shard of the job has complete: at least the committed one, unless a store was lost. It
// can be newer: all shards finished it, and the coordinator died before it could commit.
Status CoordinatorCore::choose_snapshot(Job& job) {
  if (!job.on_servers()) return choose_checkpoint(job);
  job.resume = job.record.initialised;
  job.resume_round = job.record.committed;
  std::optional<std::set<std::uint64_t>> common;
  for (const std::uint16_t shard : shards_of(job)) {
    std::set<std::uint64_t> rounds;
    if (const auto server = servers_.find(shard); server != servers_.end()) {
      for (const StoredJob& stored : server->second.hello.stored) {
        if (stored.job != job.record.job) continue;
        for (const Round round : stored.snapshots) rounds.insert(round.value);
      }
    }
    if (job.record.initialised && shard >= options_.servers) {
      return fail(
          ErrorCode::kTopology,
          in_words(job) + " has state on server " + std::to_string(shard) + ", but the cluster has " +
              std::to_string(options_.servers) +
              " servers; start as many servers as before; to change their number, save a checkpoint while they are "
              "there (tributary checkpoint save) and restore it into the new cluster. To start over: another "
              "job.name, or with tributary up --fresh or another --base-dir");
    }
    if (job.record.initialised && !rounds.contains(job.record.committed.value)) {
      return fail(ErrorCode::kStore, "server " + std::to_string(shard) + "'s store lacks the snapshot of round " +
                                         std::to_string(job.record.committed.value) + " of " + in_words(job) +
                                         "; start it with the store it had, restore a checkpoint (tributary checkpoint "
                                         "restore), or start over under another job name");
    }
    if (!common) {
      common = rounds;
    } else {
      std::erase_if(*common, [&](std::uint64_t round) { return !rounds.contains(round); });
    }
  }
  if (common && !common->empty()) {
    job.record.initialised = job.resume = true;
    const Round newest = std::max(job.record.committed, Round(*common->rbegin()));
    if (newest != job.record.committed) commit_rank_states(job, newest);
    job.record.committed = job.resume_round = newest;
  }
  return {};
}

void CoordinatorCore::on(PeerId from, const ShardReady& m, std::uint64_t now_ms) {
  Job* job = job_in_view(m.job, m.view);
  const Server* server = server_at(from);
  if (!job || job->phase != Phase::kOpening || !server) return;
  const std::uint16_t shard = server->hello.shard.value;
  if (!m.ok) {
    send_members(*job, ControlError{m.code, m.message, job->config.name});
    job->members.clear();  // they have been told why, and do not wait any more
    return regather(*job, "server " + std::to_string(shard) + " cannot open it: " + m.message, now_ms);
  }
  job->ready.insert(shard);
  if (job->ready.size() == options_.servers) welcome(*job, now_ms);
}

JobWelcome CoordinatorCore::welcome_message(const Job& job, std::uint32_t node) const {
  JobWelcome welcome;
  welcome.name = job.config.name;
  welcome.job = job.record.job;
  welcome.view = job.record.view;
  welcome.chunk_elements = job.record.chunk_elements;
  welcome.owners = job.record.owners;
  if (job.on_servers()) {
    for (const auto& [index, server] : servers_) {
      welcome.endpoints.push_back(server.hello.lane_endpoints);
      welcome.locals.push_back(server.hello.lane_locals);
    }
  }
  welcome.resume = job.resume || !job.kept_open.empty();
  welcome.resume_round = job.start;
  welcome.committed = job.record.committed;
  welcome.redo = keeps_redo(job);
  welcome.redo_after = redo_after(job);
  // In a view nodes count from 0, in the order of the ranks that they are known by.
  welcome.node = NodeRank(static_cast<std::uint32_t>(std::distance(job.members.begin(), job.members.find(node))));
  welcome.nodes = job.nodes;
  welcome.members = job.record.view_nodes.hash;
  welcome.rank_states = rank_states_of(job, node);
  return welcome;
}

void CoordinatorCore::welcome(Job& job, std::uint64_t now_ms) {
  for (const auto& [node, member] : job.members) {
    if (!job.on_servers() || !has_rounds(job.config)) break;
    if (member.join.redo_capacity >= kMinRedoRounds) continue;
    output_.log(
        "node " + std::to_string(node) + " of " + in_words(job) +
            " keeps no pushes for lost servers (its log says why): after the loss of a server the job goes back to "
            "its last snapshot",
        LogLevel::kWarning);
    break;  // one is enough for that
  }
  miss_rank_states(job);
  job.began = job.record.view_nodes;
  set_phase(job, Phase::kRunning, now_ms);
  job.snapshot_due_ms = snapshot_due(job, now_ms);
  job.snapshot_retry_ms = 0;
  job.prepare_bytes = prepare_bytes(job);
  for (const auto& [node, member] : job.members) {
    const auto worker = workers_.find(member.worker);
    if (worker != workers_.end()) output_.send(worker->second.peer, welcome_message(job, node));
  }
}

// It may not have arrived. A worker that has begun the view takes no notice, one that has ended it says so.
void CoordinatorCore::welcome_again(const Job& job, std::uint32_t node) {
  const auto member = job.members.find(node);
  const auto worker = workers_.find(member->second.worker);
  if (worker != workers_.end()) output_.send(worker->second.peer, welcome_message(job, node));
}

// The view that was being opened is given up. No worker has heard of it: those that joined wait for the next one.
void CoordinatorCore::regather(Job& job, const std::string& reason, std::uint64_t now_ms) {
  job.last_stop = reason;
  if (job.phase == Phase::kOpening) {
    output_.log(in_words(job) + " gives view " + std::to_string(job.record.view.value) + " up while opening: " + reason,
                LogLevel::kWarning);
    send_servers(job, cut_message(job));
    park(job);
  }
  job.ready.clear();
  if (job.members.empty()) return become_idle(job, now_ms);
  set_phase(job, Phase::kGathering, now_ms);
}

}  // namespace tributary

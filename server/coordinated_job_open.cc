// How a view of a job begins: nodes join, the state is chosen, shards open.
#include <algorithm>
#include <iterator>
#include <utility>

#include "common/encoding.h"
#include "common/job_json.h"
#include "common/job_optimizer.h"
#include "common/redo_plan.h"
#include "server/coordinated_job.h"

namespace tributary {
namespace {

// Memory that the largest shard needs for a snapshot: as much as its state, as every buffer is written anew after a
// capture.
std::uint64_t snapshot_bytes(const JobRecord& record, const JobConfig& config) {
  std::map<std::uint16_t, std::uint64_t> chunks;
  std::uint64_t largest = 0;
  for (const ChunkOwner& owner : record.owners) largest = std::max(largest, ++chunks[owner.shard.value]);
  const auto optimizer = make_optimizer(config.optimizer);
  const std::uint64_t arrays = 1 + static_cast<std::uint64_t>(optimizer ? optimizer->slots() : 0);
  return largest * record.chunk_elements * sizeof(float) * arrays;
}

Status stopping_error(const std::string& job) {
  return fail(ErrorCode::kUnavailable, job + " is being stopped; attach again in a moment");
}

}  // namespace

Status CoordinatedJob::check(const JoinJob& m) const {
  if (Status possible = check_join(m, in_words()); !possible) return possible;
  if (!restoring()) return {};
  return fail(ErrorCode::kUnavailable, in_words() + " is being restored; attach again in a moment");
}

// A daemon that was restarted is a new worker under the old name. If the old one is not heard beside it, it is gone.
Result<std::optional<std::uint64_t>> CoordinatedJob::outlived_by(const JoinJob& m, const Peers::Worker& worker,
                                                                 std::uint64_t now_ms) const {
  const auto held = members().find(m.node.value);
  if (held == members().end() || held->second.worker == worker.hello.incarnation) return std::nullopt;
  const Peers::Worker* holder = context_.peers.worker(held->second.worker);
  if (!holder || holder->called != worker.called || holder->heard_ms > worker.since_ms) return std::nullopt;
  if (now_ms < worker.since_ms + context_.peers.rivalry_ms()) {
    return fail(ErrorCode::kUnavailable, "node rank " + std::to_string(m.node.value) + " of " + in_words() +
                                             " is held by another process of worker " + worker.called +
                                             "; if that one is gone, it is free in a moment");
  }
  return held->second.worker;
}

Status CoordinatedJob::join(const JoinJob& m, const JobConfig& config, const Peers::Worker& worker,
                            std::uint64_t now_ms) {
  const std::uint32_t node = m.node.value;
  if (Status status = may_have_rank(m, config, worker, now_ms); !status) return status;
  if (Status same = same_as_others(in_words(), record_, members(), m, config); !same) return same;
  if (const auto held = members().find(node); held != members().end()) {
    // Said again, because nothing came of it: the join was lost, or the welcome. A worker that has begun the view takes
    // no notice, one that has ended it says so.
    if (same_join(held->second.join, m)) {
      if (running()) output().send(worker.peer, welcome_message(node));
      return {};
    }
    // What the same worker joined with before is void: its trainers attached anew.
    if (in_view()) lose_member(node, "node " + std::to_string(node) + " attached again", now_ms);
    if (stopping()) return stopping_error(in_words());
  }
  if (Idle* idle = std::get_if<Idle>(&phase_)) phase_ = Gathering{std::move(idle->between), {}};
  Members& members = std::get<Gathering>(phase_).members;
  if (members.empty()) {
    set_config(config);
    // Without a view before, in this process's memory, the record may know one.
    if (is_elastic(config) && !awaited_.any() && !record_.members.empty()) {
      awaited_.recorded(record_.members, now_ms + config.membership.rejoin_ms);
    }
  }
  if (members.empty() || !is_elastic(config_)) nodes_ = m.nodes;
  members[node] = Member{worker.hello.incarnation, m, config, {}};
  return {};
}

// May this worker have the node rank that it asks for? kUnavailable if it may soon: workers ask again by themselves
// then.
Status CoordinatedJob::may_have_rank(const JoinJob& m, const JobConfig& config, const Peers::Worker& worker,
                                     std::uint64_t now_ms) {
  if (stopping()) return stopping_error(in_words());
  const std::string rank = "node rank " + std::to_string(m.node.value) + " of " + in_words();
  const auto held = members().find(m.node.value);
  const bool mine = held != members().end() && held->second.worker == worker.hello.incarnation;
  if (held != members().end() && held->second.left) {  // whoever it was
    return fail(ErrorCode::kUnavailable, in_words() + " waits for its other nodes to finish; attach again in a moment");
  }
  if (in_view() && !mine && !is_elastic(config_)) {
    return fail(ErrorCode::kTopology, rank + " is taken: the job is running with " + std::to_string(nodes_) +
                                          " nodes; use another job name or wait for its end");
  }
  if (held != members().end() && !mine) {
    return fail(ErrorCode::kTopology, rank + " is taken by worker " + context_.peers.name_of(held->second.worker) +
                                          "; give every node its own node rank (torchrun --node-rank)");
  }
  const auto other = std::ranges::find_if(members(), [&](const auto& entry) {
    return entry.second.worker == worker.hello.incarnation && entry.first != m.node.value;
  });
  if (other != members().end()) {
    return fail(ErrorCode::kTopology, "worker " + worker.hello.name + " is node " + std::to_string(other->first) +
                                          " of " + in_words() + " already and cannot be node " +
                                          std::to_string(m.node.value) + " too; start a worker daemon for every node");
  }
  return in_view() && !mine ? let_in(m, config, now_ms) : Status{};
}

// A node wants to take part in an elastic job while a view runs or opens.
Status CoordinatedJob::let_in(const JoinJob& m, const JobConfig& config, std::uint64_t now_ms) {
  Running* running = std::get_if<Running>(&phase_);
  if (!running || running->stop_requested || one_that_left(running->view.members)) {
    return fail(ErrorCode::kUnavailable, in_words() +
                                             (running ? " is about to end; a later run can have node "
                                                      : " is just beginning a view; the next one can have node ") +
                                             std::to_string(m.node.value));
  }
  // Who does not fit disturbs nobody.
  if (Status same = same_as_others(in_words(), record_, members(), m, config); !same) return same;
  if (!has_rounds(config_) || make_encoding(config_.push)->keeps_residual()) {
    // It will go back to a snapshot: to a new one.
    if (!running->joins_after) running->joins_after = record_.committed;
    if (record_.committed <= *running->joins_after) {
      return fail(ErrorCode::kUnavailable,
                  in_words() + " can have node " + std::to_string(m.node.value) +
                      " after its next snapshot, because its mode or encoding goes back to one when nodes change");
    }
  }
  restart("node " + std::to_string(m.node.value) + " joins", now_ms);
  return {};
}

bool CoordinatedJob::complete(std::uint64_t now_ms) const {
  const Gathering* gathering = std::get_if<Gathering>(&phase_);
  if (!gathering || context_.draining) return false;
  if (!gathered(gathering->members, awaited_, config_, nodes_, now_ms)) return false;
  return servers() == 0 || (context_.peers.all_servers() && gathering->between.asked.empty());
}

void CoordinatedJob::open(JobId fresh_id, std::uint64_t now_ms) {
  Gathering& gathering = std::get<Gathering>(phase_);
  Members& members = gathering.members;
  set_config(members.begin()->second.config);
  const bool fresh = record_.job.value == 0;
  Result<ViewStart> start = choose_state(gathering, fresh_id);
  Status status;
  if (start) {
    if (start->anew()) status = may_open_fresh();
    if (status) status = begin_record(*start, members);
  } else {
    status = tl::unexpected(start.error());
  }
  if (!status) {
    if (fresh) record_.job = JobId();  // nobody has heard of it
    return refuse_opening(status.error(), now_ms);
  }
  drop_older();
  // Later snapshots that only some shards have belong to rounds that this view will go through again.
  context_.peers.forget_snapshots(record_.job, [&](Round r) { return !start->resume || r > start->loaded; });
  std::map<std::uint32_t, PendingRankStates::Holder> holders;
  for (const auto& [node, member] : members) holders[node] = {member.worker, member.join.local_world_size};
  rank_states_.begin_view(std::move(holders), start->round, start->anew());
  paces_.begin_view();
  reached_ = start->round;
  output().log(in_words() + " opens view " + std::to_string(record_.view.value) + " with " + std::to_string(nodes_) +
               " nodes, " + start->in_words(shards().size()));
  View view{std::move(members), std::move(*start), {}};
  if (has_gate(config_)) view.gate.emplace(config_.gate, record_.owners.size());
  phase_ = Opening{std::move(view), {}};
  if (servers() == 0) return run(now_ms);
  for (const auto& [index, server] : context_.peers.servers()) {
    if (server.alive) output().send(server.peer, open_message(index));
  }
}

// The state that the next view begins with, and whose it is: from here on the record is of the nodes that have joined.
Result<ViewStart> CoordinatedJob::choose_state(Gathering& gathering, JobId fresh_id) {
  const Members& members = gathering.members;
  const JoinJob& join = members.begin()->second.join;
  // All servers may have the first snapshot, and the coordinator died before it could commit it.
  if (servers() != 0 && !record_.initialised && record_.job.value != 0) {
    if (const Result<bool> any = take_newest(members); !any) return tl::unexpected(any.error());
    if (record_.initialised) {
      const Status same = same_as(in_words(), record_.tensors, record_.job_json, true, join);
      if (!same) return tl::unexpected(same.error());
    }
  }
  // A training that never got to a snapshot and has been changed is another training, whatever is left of it in the
  // stores.
  if (!record_.initialised && (record_.tensors != join.tensors || !same_training(record_.job_json, join.job_json))) {
    if (record_.job.value != 0) older_.insert(record_.job);
    JobRecord another;
    another.view = record_.view;
    another.tensors = join.tensors;
    record_ = std::move(another);
    gathering.between.kept.clear();
  }
  if (record_.job.value == 0) record_.job = fresh_id;
  record_.job_json = join.job_json;
  record_.members = nodes_of(members);
  nodes_ = static_cast<std::uint32_t>(members.size());
  record_.world_size = nodes_ * join.local_world_size;
  ViewNodes nodes{members_hash(record_.members, began_.since), began_.since, began_.first};
  const bool others = began_.hash != 0 && began_.hash != nodes.hash;
  record_.view = record_.view.next();
  if (others) nodes = {members_hash(record_.members, record_.view), record_.view, nodes.first};
  record_.view_nodes = nodes;
  record_.finished = false;
  const Result<bool> resume = take_newest(members);
  if (!resume) return tl::unexpected(resume.error());
  const KeptShards& kept = gathering.between.kept;
  ViewStart start =
      choose_start(*resume, record_.committed, record_, config_, shards(), StateInMemory{kept, members, reached_});
  // A server may be a round further, with some chunks, than where a view begins: it was brought there by the nodes of a
  // view before. What lies beyond that is made (again) by these.
  Round most = start.round;
  for (const std::uint16_t shard : start.kept) most = std::max(most, Round(kept.at(shard).max_version.value));
  Round& first = record_.view_nodes.first;
  first = nodes.hash != began_.hash ? most.next() : std::min(first, most.next());
  return start;
}

// The newest state on disks becomes the record's. Is there any?
Result<bool> CoordinatedJob::take_newest(const Members& members) {
  const Result<StateHome::Stored> newest = home_->newest(config_, record_, members);
  if (!newest) return tl::unexpected(newest.error());
  record_.initialised = newest->any && servers() != 0;
  if (newest->round != record_.committed) commit_rank_states(newest->round);
  record_.committed = newest->round;
  return newest->any;
}

// The record of the view that opens, durable.
Status CoordinatedJob::begin_record(const ViewStart& start, const Members& members) {
  if (start.anew()) record_.computed_with.clear();
  if (const auto mixed = add_kinds(record_.computed_with, members)) {
    output().log(in_words() + " " + *mixed, LogLevel::kWarning);
  }
  Result<std::optional<JobPlacement>> placement = home_->lay_out(config_, record_, members, start);
  if (!placement) return tl::unexpected(placement.error());
  if (*placement) placement_ = std::move(*placement);
  const Status saved = output().save(record_);
  if (saved) return {};
  // Room on the disk may come back; nobody's place is lost until then.
  return fail(ErrorCode::kUnavailable, "the coordinator cannot record it: " + saved.error().message);
}

// REQUIRES: nothing of the job that the registry knows can be gone on from.
Status CoordinatedJob::may_open_fresh() const {
  for (const auto& [index, server] : context_.peers.servers()) {
    for (const StoredJob& stored : server.hello.stored) {
      if (stored.name != config_.name || stored.snapshots.empty() || knows(stored.job)) continue;
      return fail(ErrorCode::kStore,
                  "server " + std::to_string(index) + "'s store has " + newest_in_words(stored) + " of " + in_words() +
                      " (job id " + std::to_string(stored.job.value) +
                      "), which the registry in server 0's store does not know; it is not begun anew: start all "
                      "servers with the stores that they had (is [store] path of server 0 right?), or restore a "
                      "checkpoint (tributary checkpoint restore --force), or delete what there is of it "
                      "(tributary job remove " +
                      config_.name + ")");
    }
  }
  return {};
}

void CoordinatedJob::refuse_opening(const Error& error, std::uint64_t now_ms) {
  if (context_.refusals.is_news(PeerId(), error.code, config_.name)) {
    output().log(in_words() + " cannot open: " + error.message, LogLevel::kWarning);
  }
  send_members(ControlError{error.code, error.message, config_.name});
  become_idle(std::move(std::get<Gathering>(phase_).between), now_ms);
}

// The view that was being opened is given up. No worker has heard of it: those that joined wait for the next one.
void CoordinatedJob::gather_again(const std::string& reason, std::uint64_t now_ms) {
  last_stop_ = reason;
  output().log(in_words() + " gives view " + std::to_string(record_.view.value) + " up while opening: " + reason,
               LogLevel::kWarning);
  send_servers(cut_message());
  Members members = std::move(std::get<Opening>(phase_).view.members);
  if (members.empty()) return become_idle(ask_kept(), now_ms);
  phase_ = Gathering{ask_kept(), std::move(members)};
}

OpenJob CoordinatedJob::open_message(std::uint16_t shard) const {
  const ViewStart& start = view()->start;
  OpenJob open;
  open.job = record_.job;
  open.view = record_.view;
  open.job_json = record_.job_json;
  open.tensors = record_.tensors;
  open.chunk_elements = record_.chunk_elements;
  open.owners = record_.owners;
  open.nodes = nodes_;
  open.resume = start.resume;
  open.resume_round = start.loaded;
  open.kept = start.kept.contains(shard);
  return open;
}

void CoordinatedJob::on(std::uint16_t server, const ShardReady& m, std::uint64_t now_ms) {
  Opening* opening = std::get_if<Opening>(&phase_);
  if (!opening) return;
  if (!m.ok) {
    send_members(ControlError{m.code, m.message, config_.name});
    opening->view.members.clear();  // they have been told why, and do not wait any more
    return gather_again("server " + std::to_string(server) + " cannot open it: " + m.message, now_ms);
  }
  opening->ready.insert(server);
  if (opening->ready.size() == servers()) run(now_ms);
}

void CoordinatedJob::run(std::uint64_t now_ms) {
  View view = std::move(std::get<Opening>(phase_).view);
  const auto keeps_none = std::ranges::find_if(
      view.members, [](const auto& entry) { return entry.second.join.redo_capacity < kMinRedoRounds; });
  if (has_rounds(config_) && keeps_none != view.members.end()) {  // one is enough for that
    output().log("node " + std::to_string(keeps_none->first) + " of " + in_words() +
                     " keeps no pushes for lost servers (its log says why): after the loss of a server the job goes "
                     "back to its last snapshot",
                 LogLevel::kWarning);
  }
  // Ranks whose state is not in the snapshot begin it anew, which nobody else would notice.
  if (!record_.rank_states.empty() && view.start.resume && view.start.round == record_.committed) {
    const auto [ranks, there] = rank_states_.coverage(record_.rank_states);
    if (there != ranks) {
      output().log("of " + in_words() + " " + std::to_string(ranks - there) + " of " + std::to_string(ranks) +
                   " ranks have nothing that they kept with the snapshot of round " +
                   std::to_string(record_.committed.value) + ", and begin that anew");
    }
  }
  began_ = record_.view_nodes;
  const std::uint64_t bytes = snapshot_bytes(record_, config_);
  SnapshotSchedule snapshots(config_.snapshot, bytes >= context_.options.prepare_from_bytes ? bytes : 0, now_ms);
  phase_ = Running{std::move(view), std::move(snapshots), StragglerWatch(has_deadline(config_))};
  for (const auto& [node, member] : members()) context_.send_worker(member.worker, welcome_message(node));
}

JobWelcome CoordinatedJob::welcome_message(std::uint32_t node) const {
  const auto& [members, start, gate] = *view();
  JobWelcome welcome;
  welcome.name = config_.name;
  welcome.job = record_.job;
  welcome.view = record_.view;
  welcome.chunk_elements = record_.chunk_elements;
  welcome.owners = record_.owners;
  welcome.resume = !start.anew();
  welcome.resume_round = start.round;
  welcome.committed = record_.committed;
  welcome.redo = keeps_redo(members);
  // In a view nodes count from 0, in the order of the ranks that they are known by.
  welcome.node = NodeRank(static_cast<std::uint32_t>(std::distance(members.begin(), members.find(node))));
  welcome.nodes = nodes_;
  welcome.members = record_.view_nodes.hash;
  const bool committed = start.resume && start.round == record_.committed;
  welcome.rank_states = rank_states_.of_node(node, committed ? &record_.rank_states : nullptr, start.round);
  if (servers() == 0) return welcome;
  const std::set<std::uint16_t> owning = shards();
  for (const auto& [index, server] : context_.peers.servers()) {
    welcome.endpoints.push_back(server.hello.lane_endpoints);
    welcome.locals.push_back(server.hello.lane_locals);
    if (start.round == start.loaded) continue;
    const bool has = start.kept.contains(index) || !owning.contains(index);  // those without chunks lack nothing
    welcome.redo_after.emplace_back(has ? start.round.value : start.loaded.value);
  }
  return welcome;
}

}  // namespace tributary

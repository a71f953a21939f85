// How a view of a job begins: nodes join, the state is chosen, shards open.
#include <algorithm>
#include <iterator>
#include <utility>

#include "common/config/job_json.h"
#include "common/config/job_optimizer.h"
#include "common/math/encoding.h"
#include "common/wire/redo_plan.h"
#include "server/coordinator/coordinated_job.h"

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

OpenJob open_message(const JobRecord& record, const JobView& view, std::uint16_t shard) {
  OpenJob open;
  open.job = record.job;
  open.view = record.view;
  open.job_json = record.job_json;
  open.tensors = record.tensors;
  open.chunk_elements = record.chunk_elements;
  open.owners = record.owners;
  open.nodes = static_cast<std::uint32_t>(view.members.size());
  open.resume = view.start.resume;
  open.resume_round = view.start.loaded;
  open.kept = view.start.kept.contains(shard);
  return open;
}

Status stopping_error(const std::string& job) {
  return fail(ErrorCode::kUnavailable, job + " is being stopped; attach again in a moment");
}

// May this worker have the node rank that it asks for? kUnavailable if it may soon: workers ask again by themselves
// then.
Status check_rank(const CoordinatedJob& job, const JoinJob& m, const Peers::Worker& worker, const Peers& peers) {
  if (job.stopping()) return stopping_error(job.in_words());
  const JobMembers& members = job.members();
  const std::string rank = "node rank " + std::to_string(m.node.value) + " of " + job.in_words();
  const auto held = members.find(m.node.value);
  const bool mine = held != members.end() && held->second.worker == worker.hello.incarnation;
  if (held != members.end() && held->second.left) {  // whoever it was
    return fail(ErrorCode::kUnavailable,
                job.in_words() + " waits for its other nodes to finish; attach again in a moment");
  }
  if (job.in_view() && !mine && !is_elastic(job.config())) {
    return fail(ErrorCode::kTopology, rank + " is taken: the job is running with " + std::to_string(job.nodes()) +
                                          " nodes; use another job name or wait for its end");
  }
  if (held != members.end() && !mine) {
    return fail(ErrorCode::kTopology, rank + " is taken by worker " + peers.name_of(held->second.worker) +
                                          "; give every node its own node rank (torchrun --node-rank)");
  }
  const auto other = member_of(members, worker.hello.incarnation);
  if (other == members.end() || mine) return {};
  return fail(ErrorCode::kTopology, "worker " + worker.hello.name + " is node " + std::to_string(other->first) +
                                        " of " + job.in_words() + " already and cannot be node " +
                                        std::to_string(m.node.value) + " too; start a worker daemon for every node");
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
  if (Status free = check_rank(*this, m, worker, context_.peers); !free) return free;
  if (in_view() && !members().contains(node)) {
    if (Status status = let_in(m, config, now_ms); !status) return status;
  }
  if (Status same = same_as_others(in_words(), record(), members(), m, config); !same) return same;
  if (const auto held = members().find(node); held != members().end()) {
    // Said again, because nothing came of it: the join was lost, or the welcome. A worker that has begun the view takes
    // no notice, one that has ended it says so.
    if (same_join(held->second.join, m)) {
      if (running()) context_.output.send(worker.peer, welcome_message(node));
      return {};
    }
    // What the same worker joined with before is void: its trainers attached anew.
    if (in_view()) lose_member(node, "node " + std::to_string(node) + " attached again", now_ms);
    if (stopping()) return stopping_error(in_words());
  }
  if (phase::Idle* idle = std::get_if<phase::Idle>(&phase_)) phase_ = phase::Gathering{std::move(idle->between), {}};
  JobMembers& members = std::get<phase::Gathering>(phase_).members;
  if (members.empty()) {
    set_config(config);
    // Without a view before, in this process's memory, the record may know one.
    if (is_elastic(config) && !awaited_.any() && !record().members.empty()) {
      awaited_.recorded(record().members, now_ms + config.membership.rejoin_ms);
    }
  }
  if (members.empty() || !is_elastic(config_)) nodes_ = m.nodes;
  members[node] = JobMember{worker.hello.incarnation, m, config, {}};
  return {};
}

// A node wants to take part in an elastic job while a view runs or opens.
Status CoordinatedJob::let_in(const JoinJob& m, const JobConfig& config, std::uint64_t now_ms) {
  phase::Running* running = std::get_if<phase::Running>(&phase_);
  if (!running || running->stop_requested || one_that_left(running->view.members)) {
    return fail(ErrorCode::kUnavailable, in_words() +
                                             (running ? " is about to end; a later run can have node "
                                                      : " is just beginning a view; the next one can have node ") +
                                             std::to_string(m.node.value));
  }
  // Who does not fit disturbs nobody.
  if (Status same = same_as_others(in_words(), record(), members(), m, config); !same) return same;
  if (!has_rounds(config_) || make_encoding(config_.push)->keeps_residual()) {
    // It will go back to a snapshot: to a new one.
    if (!running->joins_after) running->joins_after = record().committed;
    if (record().committed <= *running->joins_after) {
      return fail(ErrorCode::kUnavailable,
                  in_words() + " can have node " + std::to_string(m.node.value) +
                      " after its next snapshot, because its mode or encoding goes back to one when nodes change");
    }
  }
  restart("node " + std::to_string(m.node.value) + " joins", now_ms);
  return {};
}

bool CoordinatedJob::complete(std::uint64_t now_ms) const {
  const phase::Gathering* gathering = std::get_if<phase::Gathering>(&phase_);
  if (!gathering || context_.draining) return false;
  if (!gathered(gathering->members, awaited_, config_, nodes_, now_ms)) return false;
  return servers() == 0 || (context_.peers.all_servers() && gathering->between.asked.empty());
}

void CoordinatedJob::open(JobId fresh_id, std::uint64_t now_ms) {
  phase::Gathering& gathering = std::get<phase::Gathering>(phase_);
  set_config(gathering.members.begin()->second.config);
  Result<ViewStart> start = begin_view(gathering, fresh_id);
  if (!start) {
    if (record().job == fresh_id) keeper_.give_up_id();
    const Error& error = start.error();
    if (context_.refusals.is_news(PeerId(), error.code, config_.name)) {
      context_.output.log(in_words() + " cannot open: " + error.message, LogLevel::kWarning);
    }
    send_members(ControlError{error.code, error.message, config_.name});
    return become_idle(std::move(gathering.between), now_ms);
  }
  keeper_.view_opens(*start, gathering.members);
  paces_.begin_view();
  reached_ = start->round;
  context_.output.log(in_words() + " opens view " + std::to_string(record().view.value) + " with " +
                      std::to_string(nodes_) + " nodes, " + start->in_words(shards().size()));
  JobView view{std::move(gathering.members), std::move(*start), {}};
  if (has_gate(config_)) view.gate.emplace(config_.gate, record().owners.size());
  phase_ = phase::Opening{std::move(view), {}};
  if (servers() == 0) return run(now_ms);
  for (const auto& [index, server] : context_.peers.servers()) {
    if (server.alive) context_.output.send(server.peer, open_message(record(), *this->view(), index));
  }
}

// The record becomes that of a view of the nodes that have joined. Where it begins.
Result<ViewStart> CoordinatedJob::begin_view(phase::Gathering& gathering, JobId fresh_id) {
  const JobMembers& members = gathering.members;
  const JoinJob& join = members.begin()->second.join;
  // The newest state on disks becomes the record's. Is there any?
  const auto take_newest = [&]() -> Result<bool> {
    const Result<StateHome::Stored> newest = home_->newest(config_, record(), members);
    if (!newest) return tl::unexpected(newest.error());
    keeper_.set_committed(newest->round, newest->any && servers() != 0);
    return newest->any;
  };
  // All servers may have the first snapshot, and the coordinator died before it could commit it.
  if (servers() != 0 && !record().initialised && record().job.value != 0) {
    if (const Result<bool> any = take_newest(); !any) return tl::unexpected(any.error());
    if (record().initialised) {
      const Status same = same_as(in_words(), record().tensors, record().job_json, true, join);
      if (!same) return tl::unexpected(same.error());
    }
  }
  KeptShards& kept = gathering.between.kept;
  if (keeper_.begin_another_training(join)) kept.clear();
  nodes_ = static_cast<std::uint32_t>(members.size());
  keeper_.begin_view(fresh_id, members);
  const Result<bool> resume = take_newest();
  if (!resume) return tl::unexpected(resume.error());
  const ViewStart start =
      choose_start(*resume, record().committed, record(), config_, shards(), StateInMemory{kept, members, reached_});
  if (start.anew()) {
    if (const Status status = keeper_.may_begin_anew(); !status) return tl::unexpected(status.error());
  }
  Result<DealtChunks> chunks = home_->lay_out(config_, record(), members, start);
  if (!chunks) return tl::unexpected(chunks.error());
  if (chunks->placement) placement_ = std::move(chunks->placement);
  const Status saved = keeper_.save_view(start, kept, members, std::move(*chunks));
  if (!saved) return tl::unexpected(saved.error());
  return start;
}

void CoordinatedJob::on(std::uint16_t server, const ShardReady& m, std::uint64_t now_ms) {
  phase::Opening* opening = std::get_if<phase::Opening>(&phase_);
  if (!opening) return;
  if (!m.ok) {
    // Trainers hear nothing else of where it is. Some errors begin with that.
    const std::string who = "server " + std::to_string(server);
    send_members(ControlError{m.code, m.message.starts_with(who) ? m.message : who + ": " + m.message, config_.name});
    opening->view.members.clear();  // they have been told why, and do not wait any more
    return gather_again("server " + std::to_string(server) + " cannot open it: " + m.message, now_ms);
  }
  opening->ready.insert(server);
  if (opening->ready.size() == servers()) run(now_ms);
}

void CoordinatedJob::run(std::uint64_t now_ms) {
  JobView view = std::move(std::get<phase::Opening>(phase_).view);
  const auto keeps_none = std::ranges::find_if(
      view.members, [](const auto& entry) { return entry.second.join.redo_capacity < kMinRedoRounds; });
  if (has_rounds(config_) && keeps_none != view.members.end()) {  // one is enough for that
    context_.output.log("node " + std::to_string(keeps_none->first) + " of " + in_words() +
                            " keeps no pushes for lost servers (its log says why): after the loss of a server the job "
                            "goes back to its last snapshot",
                        LogLevel::kWarning);
  }
  keeper_.view_runs(view.start);
  const std::uint64_t bytes = snapshot_bytes(record(), config_);
  SnapshotSchedule snapshots(config_.snapshot, bytes >= context_.options.prepare_from_bytes ? bytes : 0, now_ms);
  phase_ = phase::Running{std::move(view), std::move(snapshots), StragglerWatch(has_deadline(config_))};
  for (const auto& [node, member] : members()) context_.send_worker(member.worker, welcome_message(node));
}

JobWelcome CoordinatedJob::welcome_message(std::uint32_t node) const {
  const auto& [members, start, gate] = *view();
  JobWelcome welcome;
  welcome.name = config_.name;
  welcome.job = record().job;
  welcome.view = record().view;
  welcome.chunk_elements = record().chunk_elements;
  welcome.owners = record().owners;
  welcome.resume = !start.anew();
  welcome.resume_round = start.round;
  welcome.committed = record().committed;
  welcome.redo = keeps_redo(config_, members, context_.peers);
  // In a view nodes count from 0, in the order of the ranks that they are known by.
  welcome.node = NodeRank(static_cast<std::uint32_t>(std::distance(members.begin(), members.find(node))));
  welcome.nodes = nodes_;
  welcome.members = record().view_nodes.hash;
  welcome.rank_states = keeper_.rank_states(node, start);
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

void CoordinatedJob::tell_again(const Peers::Server& server) {
  if (servers() == 0) return;
  const std::uint16_t shard = server.hello.shard.value;
  const auto tell = [&](const ControlMessage& message) { context_.output.send(server.peer, message); };
  if (const phase::Opening* opening = std::get_if<phase::Opening>(&phase_)) {
    if (!opening->ready.contains(shard)) tell(open_message(record(), opening->view, shard));
  } else if (const phase::Running* running = std::get_if<phase::Running>(&phase_)) {
    // It may hold rounds back until it hears of a snapshot.
    if (record().initialised && keeper_.told()) tell(SnapshotCommit{record().job, record().committed});
    const SnapshotSchedule& snapshots = running->snapshots;
    if (snapshots.awaits_memory_of(shard)) tell(PrepareSnapshot{record().job, record().view});
    if (snapshots.awaits_part_of(shard)) tell(SnapshotAt{record().job, record().view, *snapshots.under_way()});
  } else if (const phase::Stopping* stopping = std::get_if<phase::Stopping>(&phase_)) {
    if (!stopping->done.contains(shard)) tell(stop_message());
  } else if (between()->asked.contains(shard)) {
    tell(cut_message());  // what it keeps of the last view is still to be said
  }
}

void CoordinatedJob::tell_again(std::uint64_t worker) {
  const auto member = member_of(members(), worker);
  if (member == members().end()) return;
  const auto tell = [&](const ControlMessage& message) { context_.send_worker(worker, message); };
  if (stopping()) return tell(stop_message());
  const phase::Running* running = std::get_if<phase::Running>(&phase_);
  if (!running || member->second.left) return;
  tell(welcome_message(member->first));
  if (running->stop_requested) tell(StopRequest{record().job, record().view, last_stop_});
  if (const auto round = running->snapshots.under_way()) tell(SnapshotAt{record().job, record().view, *round});
}

}  // namespace tributary

// How a view of a job begins: nodes join, the state is chosen, shards open.
#include <algorithm>
#include <utility>

#include "server/coordinator/job/coordinated_job.h"
#include "server/coordinator/job/view_messages.h"

namespace tributary {
namespace {

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
  if (!loading() && !removing()) return {};
  return fail(ErrorCode::kUnavailable, in_words() + " is being " +
                                           (loading() ? std::get<IdleJob>(phase_).loading->what : "removed") +
                                           "; attach again in a moment");
}

// A daemon that was restarted is a new worker under the old name. If the old one is not heard beside it, it is gone.
Result<std::optional<std::uint64_t>> CoordinatedJob::outlived_by(const JoinJob& m, const Peers::Worker& worker,
                                                                 std::uint64_t now_ms) const {
  const auto held = members().find(m.node.value);
  if (held == members().end() || held->second.worker == worker.hello.incarnation) return std::nullopt;
  const Peers::Worker* holder = ledger_.context.peers.worker(held->second.worker);
  if (!holder || holder->called != worker.called || holder->heard_ms > worker.since_ms) return std::nullopt;
  if (now_ms < worker.since_ms + ledger_.context.peers.rivalry_ms()) {
    return fail(ErrorCode::kUnavailable, "node rank " + std::to_string(m.node.value) + " of " + in_words() +
                                             " is held by another process of worker " + worker.called +
                                             "; if that one is gone, it is free in a moment");
  }
  return held->second.worker;
}

Status CoordinatedJob::join(const JoinJob& m, const JobConfig& config, const Peers::Worker& worker,
                            std::uint64_t now_ms) {
  const std::uint32_t node = m.node.value;
  // A worker is one node of a job, and refuses trainers of another one itself. Between views its trainers attached again
  // as another node, and the leave of the old one was lost.
  if (is<GatheringJob>()) {
    const auto other = member_of(members(), worker.hello.incarnation);
    if (other != members().end() && other->first != node) {
      lose_member(other->first, "worker " + worker.hello.name + " attached as node " + std::to_string(node), now_ms);
    }
  }
  if (Status free = check_rank(*this, m, worker, ledger_.context.peers); !free) return free;
  if (in_view() && !members().contains(node)) {  // it wants to take part in an elastic job while a view runs or opens
    RunningView* running = std::get_if<RunningView>(&phase_);
    if (!running) {
      return fail(ErrorCode::kUnavailable,
                  in_words() + " is just beginning a view; the next one can have node " + std::to_string(node));
    }
    if (Status possible = running->lets_in(m, config); !possible) return possible;
    restart("node " + std::to_string(node) + " joins", now_ms);
  }
  const BetweenViews* between = this->between();
  const bool keeps = between && std::ranges::any_of(between->kept, [&](const auto& kept) {
                       return kept.second.job == record().job && kept.second.max_version.value != 0;
                     });
  if (Status same = same_as_others(in_words(), record(), keeps, members(), m, config); !same) return same;
  if (const auto held = members().find(node); held != members().end()) {
    // Repeated, because the join or the welcome was lost. A worker that has begun the view ignores another welcome, and
    // one that has ended the view reports that.
    if (same_join(held->second.join, m)) {
      if (RunningView* running = std::get_if<RunningView>(&phase_)) running->welcome(node);
      return {};
    }
    // The same worker's earlier join is void: its trainers attached again.
    if (in_view()) lose_member(node, "node " + std::to_string(node) + " attached again", now_ms);
    if (stopping()) return stopping_error(in_words());
  }
  if (IdleJob* idle = std::get_if<IdleJob>(&phase_)) phase_ = GatheringJob{std::move(idle->between), {}, {}};
  JobMembers& members = std::get<GatheringJob>(phase_).members;
  if (members.empty()) {
    ledger_.set_config(config);
    // This process remembers no earlier view, but the record may know one.
    if (is_elastic(config) && !ledger_.awaited.any() && !record().members.empty()) {
      ledger_.awaited.recorded(record().members, now_ms + config.membership.rejoin_ms);
    }
  }
  if (members.empty() || !is_elastic(this->config())) ledger_.nodes = m.nodes;
  members[node] = JobMember{worker.hello.incarnation, m, config, {}};
  reconsider();
  std::get<GatheringJob>(phase_).refused.erase(node);
  return {};
}

void CoordinatedJob::refused(NodeRank node, const std::string& why) {
  GatheringJob* gathering = std::get_if<GatheringJob>(&phase_);
  if (gathering && node.value < ledger_.nodes && !gathering->members.contains(node.value))
    gathering->refused[node.value] = why;
}

bool CoordinatedJob::complete(std::uint64_t now_ms) const {
  const GatheringJob* gathering = std::get_if<GatheringJob>(&phase_);
  const CoordinatorContext& context = ledger_.context;
  if (!gathering || context.draining || ledger_.keeper.saves()) return false;
  if (!gathered(gathering->members, ledger_.awaited, config(), ledger_.nodes, now_ms)) return false;
  if (servers() == 0) return true;
  return !context.copies.searching() && gathering->between.asked.empty() &&
         ledger_.placed.enough(config().membership, ledger_.with_state(), now_ms);
}

void CoordinatedJob::open(JobId fresh_id, std::uint64_t now_ms) {
  GatheringJob& gathering = std::get<GatheringJob>(phase_);
  ledger_.set_config(gathering.members.begin()->second.config);
  Result<ViewStart> start = begin_view(gathering, fresh_id, now_ms);
  if (start) {
    gathering.start = std::move(*start);  // and on in saved()
    return;
  }
  ledger_.keeper.give_view_up();
  cannot_open(start.error(), now_ms);
}

void CoordinatedJob::cannot_open(const Error& error, std::uint64_t now_ms) {
  if (ledger_.context.refusals.is_news(PeerId(), error.code, config().name)) {
    ledger_.log(in_words() + " cannot open: " + error.message, LogLevel::kWarning);
  }
  ledger_.refuse(members(), error);
  become_idle(std::move(std::get<GatheringJob>(phase_).between), now_ms);
}

void CoordinatedJob::reconsider() {
  if (GatheringJob* gathering = std::get_if<GatheringJob>(&phase_)) gathering->start.reset();
}

void CoordinatedJob::saved(const Status& status, std::uint64_t now_ms) {
  if (!ledger_.keeper.saves_view()) {
    if (ledger_.keeper.saved(status, now_ms)) ledger_.tell_commit(members(), now_ms);
    if (StoppingView* stopping = std::get_if<StoppingView>(&phase_)) end_stop(stopping->recorded(now_ms), now_ms);
    return;
  }
  GatheringJob* gathering = std::get_if<GatheringJob>(&phase_);
  std::optional<ViewStart> start = gathering ? std::exchange(gathering->start, std::nullopt) : std::nullopt;
  ledger_.keeper.view_saved(status.has_value(), start.has_value());
  if (!start) return look_at_kept(now_ms);
  if (status) return begin_opening(std::move(*start), now_ms);
  // Room on the disk may come back; nobody's place is lost until then.
  cannot_open({ErrorCode::kUnavailable, "the coordinator cannot record it: " + status.error().message}, now_ms);
}

void CoordinatedJob::begin_opening(ViewStart start, std::uint64_t now_ms) {
  GatheringJob& gathering = std::get<GatheringJob>(phase_);
  ledger_.keeper.view_opens(start, gathering.members);
  const std::set<std::uint16_t> shards = this->shards();
  ledger_.paces.begin_view(
      [&](std::uint32_t maker) { return servers() == 0 || shards.contains(static_cast<std::uint16_t>(maker)); });
  ledger_.reached = start.round;
  ledger_.log(in_words() + " opens view " + std::to_string(record().view.value) + " with " +
              std::to_string(ledger_.nodes) + " nodes, " + start.in_words(shards.size()));
  JobView view{std::move(gathering.members), std::move(start), {}};
  view.first = choose_first(ledger_.keeper.whole_state(view.start), view.members, record().job, view.start);
  if (has_gate(config())) view.gate.emplace(config().gate, record().owners.size(), view.start.round);
  phase_ = OpeningView{std::move(view), {}};
  if (servers() == 0) return run(now_ms);
  ledger_.context.copy(record(), now_ms);
  drop_older(true);
  for (const auto& [index, server] : ledger_.context.peers.servers()) {
    if (!ledger_.context.peers.stays(index)) continue;  // one that stops has no chunks
    std::get<OpeningView>(phase_).awaited.insert(index);
    ledger_.context.output.send(server.peer, open_message(ledger_, *this->view(), index));
  }
}

// The record becomes that of a view of the nodes that have joined. Where it begins.
Result<ViewStart> CoordinatedJob::begin_view(GatheringJob& gathering, JobId fresh_id, std::uint64_t now_ms) {
  const JobMembers& members = gathering.members;
  const JoinJob& join = members.begin()->second.join;
  if (Status fits = check_model_ranks(members, config()); !fits) {
    return fail(fits.error().code, in_words() + ": " + fits.error().message);
  }
  // All servers may have the first snapshot, and the coordinator died before it could commit it.
  if (servers() != 0 && !record().initialised && record().job.value != 0) {
    if (const Result<bool> any = take_newest(members); !any) return tl::unexpected(any.error());
    if (record().initialised) {
      const Status same = same_as(in_words(), record().tensors, record().job_json, true, join);
      if (!same) return tl::unexpected(same.error());
    }
  }
  KeptShards& kept = gathering.between.kept;
  std::erase_if(kept, [&](const auto& entry) { return !ledger_.context.peers.stays(entry.first); });
  if (ledger_.keeper.begin_another_training(join)) kept.clear();
  ledger_.nodes = static_cast<std::uint32_t>(members.size());
  const Result<bool> resume = take_newest(members);
  if (!resume) return tl::unexpected(resume.error());
  ledger_.keeper.begin_view(fresh_id, members);
  const ViewStart newest = choose_start(*resume, record().committed, record(), ledger_.plan(), shards(),
                                        StateInMemory{kept, members, ledger_.reached});
  const Result<ViewStart> chosen = start_with_state(newest, members, now_ms);
  if (!chosen) return chosen;
  const ViewStart& start = *chosen;
  // Stores may have a first snapshot that no record names.
  for (const std::uint16_t shard : start.anew() ? std::set<std::uint16_t>() : shards()) {
    if (ledger_.context.peers.stays(shard)) continue;
    return fail(ErrorCode::kUnavailable, in_words() + " has state on server " + std::to_string(shard) +
                                             ", which is away; attach again in a moment");
  }
  if (start.anew()) {
    Status may = ledger_.keeper.may_begin_anew();
    if (may && servers() != 0) may = ledger_.context.peers.room_for_another_job();
    if (!may) return tl::unexpected(may.error());
    ledger_.keeper.begin_anew(fresh_id);
  }
  Result<DealtChunks> chunks = ledger_.home().lay_out(config(), record(), members, start);
  if (!chunks) return tl::unexpected(chunks.error());
  if (chunks->placement) ledger_.placement = std::move(chunks->placement);
  ledger_.keeper.save_view(start, members, std::move(*chunks));
  return start;
}

// The newest state on disks becomes the record's. Is there any? With on_state_lost = "rewind" a snapshot that is
// complete, and was not committed, is none without what ranks kept with it, and without copies: when the view has begun,
// the snapshot before has nothing that ranks kept any more.
Result<bool> CoordinatedJob::take_newest(const JobMembers& members) {
  Result<StateHome::Stored> newest = ledger_.home().newest(config(), record(), members);
  if (!newest) return tl::unexpected(newest.error());
  const bool uncommitted = !record().initialised || newest->round > record().committed;
  const bool whole = ledger_.keeper.has_whole_state(newest->round) &&
                     ledger_.copies.settled(config().snapshot, ledger_.snapshot(newest->round));
  if (ledger_.rewinds() && uncommitted && !whole) *newest = {record().initialised, record().committed};
  ledger_.keeper.set_committed(newest->round, newest->any && servers() != 0);
  return newest->any;
}

// With on_state_lost = "rewind" a view begins where a node has what ranks kept, or at the last snapshot, which has it.
Result<ViewStart> CoordinatedJob::start_with_state(const ViewStart& start, const JobMembers& members,
                                                   std::uint64_t now_ms) {
  const auto somebody_has = [&](const ViewStart& at) {
    return !ledger_.keeper.whole_state(at).empty() || one_that_lived(members, record().job) != kNobody ||
           one_that_is_held(members, record().job, at.round) != kNobody;
  };
  if (!ledger_.rewinds() || start.anew() || somebody_has(start)) return start;
  const std::string what = "nobody has what ranks of " + in_words() + " kept of round ";
  const ViewStart before{start.resume, start.loaded, start.loaded, {}};
  if (before.anew() || (start.round != start.loaded && somebody_has(before))) {
    ledger_.log(what + std::to_string(start.round.value) + ": it goes back to " +
                    (before.anew() ? std::string("its beginning, as it has no snapshot yet")
                                   : "the snapshot of round " + std::to_string(before.round.value)),
                LogLevel::kWarning);
    return before;
  }
  if (const auto copy = ledger_.keeper.copy_of_state()) {
    ledger_.keeper.fetch(before.round, now_ms);
    return fail(ErrorCode::kUnavailable, "what ranks of " + in_words() + " kept of round " +
                                             std::to_string(before.round.value) + " is being fetched into " +
                                             ledger_.context.peers.home_in_words() + "'s store, from the copy on " +
                                             *copy);
  }
  if (record().rank_states.empty()) {  // restored from a checkpoint that has none, or made with "continue"
    ledger_.log(what + std::to_string(before.round.value) + ", as the snapshot never had it: they begin that anew",
                LogLevel::kWarning);
    return before;
  }
  return fail(ErrorCode::kStore,
              what + std::to_string(before.round.value) +
                  ", the last snapshot, and membership.on_state_lost = \"rewind\" does not let it go on without: "
                  "start " +
                  ledger_.context.peers.home_in_words() +
                  " with the store that it had, or restore a checkpoint (tributary checkpoint restore), "
                  "or start over under another job name (tributary up: --fresh). on_state_lost = \"continue\" goes "
                  "on without it");
}

void CoordinatedJob::on(std::uint16_t server, const ShardReady& m, std::uint64_t now_ms) {
  OpeningView* opening = std::get_if<OpeningView>(&phase_);
  if (!opening) return;
  if (!m.ok) {
    // Trainers hear nothing else of where it is.
    ledger_.refuse(members(), {m.code, said_by(server, m.message)});
    opening->view.members.clear();  // they have been told why, and do not wait any more
    return gather_again("server " + std::to_string(server) + " cannot open it: " + m.message, now_ms);
  }
  opening->awaited.erase(server);
  if (opening->awaited.empty()) run(now_ms);
}

void CoordinatedJob::run(std::uint64_t now_ms) {
  JobView opened = std::move(std::get<OpeningView>(phase_).view);
  const RunningView& running = phase_.emplace<RunningView>(ledger_, std::move(opened), now_ms);
  ledger_.keeper.view_runs(running.view.start);
  ledger_.checkpoints.runs(config().checkpoint, now_ms);
  for (const auto& [node, member] : members()) running.welcome(node);
}

}  // namespace tributary

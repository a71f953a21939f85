#include "server/coordinator/job/running_view.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/base/printed.h"
#include "common/wire/redo_plan.h"
#include "server/coordinator/job/view_messages.h"

namespace tributary {
namespace {

constexpr std::uint64_t kStatePatienceMs = 60'000;  // for what ranks keep, before chunks go to other servers

// Nodes that have begun a round after the last one of nodes that have finished: no answer of it can come.
constexpr std::uint64_t kBeyondPatienceMs = 10'000;
// A first round that is to be complete before its nodes are asked to stop.
constexpr std::uint64_t kFirstRoundPatienceMs = 10'000;
constexpr std::uint64_t kTellLagMs = 60'000;       // that nodes have not finished when others have
constexpr std::uint64_t kRedoBytesPerMs = 20'000;  // 20 MB/s

// Memory that the largest shard needs for a snapshot: as much as its state, as every buffer is written anew after a
// capture. 0: so little that it need not be asked for.
std::uint64_t bytes_to_prepare(const JobLedger& ledger) {
  const JobRecord& record = ledger.record();
  std::map<std::uint16_t, std::uint64_t> chunks;
  std::uint64_t largest = 0;
  for (const ChunkOwner& owner : record.owners) largest = std::max(largest, ++chunks[owner.shard.value]);
  const std::uint64_t arrays = 1 + static_cast<std::uint64_t>(ledger.plan().optimizer->slots());
  const std::uint64_t bytes = largest * record.chunk_elements * sizeof(float) * arrays;
  return bytes >= ledger.context.options.prepare_from_bytes ? bytes : 0;
}

// Nodes keep the pushes of redo_capacity() rounds, so a snapshot is wanted half of that after the last one. It is named
// as far ahead as any (where rounds are short that is much of a ring, so at once), and writing must not cost much: on
// average kRedoBytesPerMs of each shard. None: not before all shards are beyond where they began.
std::optional<std::uint64_t> redo_snapshot_from(const JobView& view, Round newest, const JobPaces& paces) {
  if (paces.empty() || !paces.all_beyond(std::min(view.start.round, newest))) return std::nullopt;
  // Rings are of no use before there is a snapshot to load.
  return newest == Round() ? 0 : newest.value + redo_capacity(view.members) / 2;
}

std::string not_left(const JobMembers& members) {
  std::vector<std::string> nodes;
  for (const auto& [node, member] : members) {
    if (!member.left) nodes.push_back("node " + std::to_string(node));
  }
  return listed(nodes);
}

// An answer without its numbers, which change all the time.
std::string kind_of(std::string why) {
  std::erase_if(why, [](char c) { return c >= '0' && c <= '9'; });
  return why;
}

}  // namespace

RunningView::RunningView(JobLedger& ledger, JobView opened, std::uint64_t now_ms)
    : view(std::move(opened)),
      ledger_(ledger),
      snapshots_(ledger.config().snapshot, bytes_to_prepare(ledger), now_ms),
      stragglers_(has_deadline(ledger.config())),
      addresses_(static_cast<std::uint32_t>(view.members.size())),
      whole_(!view.start.ahead),
      whole_answers_(kFirstRoundPatienceMs, now_ms) {
  ledger_.stalls.begin_view(view.start.round, now_ms);
  ledger_.values.begin(ledger_.record().job, ledger_.record().view, view.start.round, ranks_of(view.members));
  const auto keeps_none = std::ranges::find_if(
      view.members, [](const auto& entry) { return entry.second.join.redo_capacity < kMinRedoRounds; });
  if (!has_rounds(ledger_.config()) || keeps_none == view.members.end()) return;
  // One is enough for that.
  ledger_.log("node " + std::to_string(keeps_none->first) + " of " + ledger_.in_words() +
                  " keeps no pushes for lost servers (its log says why): after the loss of a server the job "
                  "goes back to its last snapshot",
              LogLevel::kWarning);
}

// Logs when a node begins to lag, and when it has caught up.
void RunningView::note(const Peers::Worker& worker, const NodePace& pace) {
  if (pace.rounds == 0) return;
  const auto news = stragglers_.note(pace);
  if (!news) return;
  ledger_.log("node " + std::to_string(news->node) + " of " + ledger_.in_words() + " (worker " + worker.hello.name +
                  ") " + (news->lag ? in_words(*news->lag) : "has caught up with the others"),
              news->lag ? LogLevel::kWarning : LogLevel::kInfo);
}

void RunningView::on(const Peers::Worker& worker, const PeerAddress& m) {
  const auto author = view.members.find(m.node.value);
  const std::string who = "node " + std::to_string(m.node.value) + " of " + ledger_.in_words();
  if (author == view.members.end() || author->second.worker != worker.hello.incarnation) {
    return ledger_.context.refuse(
        worker.peer, {ErrorCode::kInvalidArgument,
                      "worker " + worker.hello.name + " is not " + who + " and has no address to give for it"});
  }
  if (const Status added = addresses_.add(m); !added) return ledger_.context.refuse(worker.peer, added.error());
  if (addresses_.complete()) tell_addresses();
}

void RunningView::tell_addresses() {
  if (!addresses_.news()) return;
  for (const auto& [node, member] : view.members) {
    addresses_.tell_news(node, [&](const PeerAddresses& list) { ledger_.context.send_worker(member.worker, list); });
  }
  addresses_.told();
}

void RunningView::on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms) {
  const std::set<std::uint16_t> parts = ledger_.shards();
  if (snapshots_.under_way() != m.round || !parts.contains(server)) return;
  if (!m.ok) {
    ledger_.snapshot_failed(server, m);
    if (awaited_ && awaited_->round == m.round) awaited_.reset();
    return snapshots_.missed(now_ms);
  }
  snapshots_.wrote(server, m.bytes);
  look_for_copies(now_ms);
}

void RunningView::lose_written(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms) {
  if (snapshots_.under_way() == m.round) return on(server, m, now_ms);
  if (copying_ != m.round && written_ != m.round) return;
  ledger_.snapshot_failed(server, m);
  if (awaited_ && awaited_->round == m.round) awaited_.reset();
  written_ == m.round ? written_.reset() : copied_next();
  drop_written(m.round);
}

// Have all parts of a snapshot copies? Copies take their time, and nodes may have room for few more rounds of pushes: the
// next snapshot does not wait for them. A view can begin with one that all servers have written, committed or not; a lost
// disk asks for the one that is committed.
void RunningView::look_for_copies(std::uint64_t now_ms) {
  if (awaited_) return;
  const bool hurries = saves() || node_waits();
  if (copying_ && ledger_.copied(*copying_, !hurries, now_ms)) commit_with_state(*copying_, now_ms);
  const auto round = snapshots_.under_way();
  if (!round || to_checkpoint_ || awaited_) return;
  const bool copied = !copying_ && ledger_.copied(*round, !hurries, now_ms);
  if (!snapshots_.written(ledger_.shards())) return;
  copied ? commit_with_state(*round, now_ms) : copy_later(*round, now_ms);
}

// Now, or when what ranks keep of it is there.
void RunningView::commit_with_state(Round round, std::uint64_t now_ms) {
  if (!waits(round, now_ms)) return commit(round, now_ms);
  awaited_.emplace(round, now_ms);
}

// All servers have written the snapshot under way, and its copies are not there.
void RunningView::copy_later(Round round, std::uint64_t now_ms) {
  ledger_.redo_due_ms = now_ms + snapshots_.committed(now_ms) / kRedoBytesPerMs;
  if (!copying_) {
    copying_ = round;
    return;
  }
  if (written_) drop_written(*written_);
  written_ = round;
}

void RunningView::drop_written(Round round) {
  const JobRecord& record = ledger_.record();
  ledger_.context.peers.forget_snapshots(record.job, [&](Round of) { return of == round; });
  ledger_.send_servers(SnapshotCommit{record.job, record.committed, round});
}

void RunningView::copied_next() {
  copying_ = std::exchange(written_, std::nullopt);
}

Round RunningView::newest_written() const {
  return std::max({ledger_.record().committed, copying_.value_or(Round()), written_.value_or(Round())});
}

bool RunningView::waits(Round round, std::uint64_t now_ms) {
  return ledger_.lacks_state(round, now_ms) || (saves() && ledger_.keeper.fetch(round, now_ms));
}

void RunningView::commit(Round round, std::uint64_t now_ms) {
  if (copying_ == round) {
    copied_next();
  } else {
    ledger_.redo_due_ms = now_ms + snapshots_.committed(now_ms) / kRedoBytesPerMs;
  }
  ledger_.commit(round, false, now_ms);
}

void RunningView::look_for_state(std::uint64_t now_ms) {
  if (!awaited_) return;
  const Round round = awaited_->round;
  const bool waiting = waits(round, now_ms);
  if (waiting && !awaited_->over(ledger_, now_ms)) return;
  if (!waiting || !ledger_.lacks_state(round, now_ms)) {  // with, or without, what did not come
    awaited_.reset();
    return commit(round, now_ms);
  }
  ledger_.not_saved = awaited_->why();
  ledger_.log("snapshot of round " + std::to_string(round.value) + " of " + ledger_.in_words() +
                  " is given up: " + ledger_.not_saved,
              LogLevel::kWarning);
  awaited_.reset();
  // No view is to begin with it. Servers drop it with the next one that is committed, or when a view begins before it.
  ledger_.context.peers.forget_snapshots(ledger_.record().job, [&](Round of) { return of == round; });
  if (copying_ == round) return copied_next();
  snapshots_.missed(now_ms);
}

// Forwards the state that the first rank keeps to all nodes.
void RunningView::on(const Peers::Worker& worker, const NodeRankState& m) {
  FirstRank& first = view.first;
  const auto author = view.members.find(m.node.value);
  const StateHead head = StateHead::of(m.kept.state);
  if (first.giver == kNobody || first.given || m.kept.round != view.start.round || author == view.members.end() ||
      !head.whole || author->second.worker != worker.hello.incarnation ||
      rank_in_view(view.members, m.node.value, m.local_rank) != first.giver) {
    return;
  }
  first.given = m;
  if (head.large) {
    ledger_.keeper.hold(head.large);
    ledger_.context.parts.announce(m.job, ledger_.in_words(), head.large, author->second.worker);
  }
  ledger_.send(view.members, m);
}

void RunningView::on(const Peers::Worker& worker, const RankValues& m, std::uint64_t now_ms) {
  const auto author = member_of(view.members, worker.hello.incarnation);
  if (author == view.members.end()) {
    return ledger_.context.refuse(worker.peer,
                                  {ErrorCode::kInvalidArgument, "worker " + worker.hello.name + " has no part in " +
                                                                    ledger_.in_words() + " and no values to give"});
  }
  const std::uint32_t ranks = author->second.join.local_world_size;
  const Status fits = JobValues::check(m.shared, rank_in_view(view.members, author->first, 0), ranks);
  if (!fits) return ledger_.context.refuse(worker.peer, fits.error());
  const Result<JobValues::Reply> reply = ledger_.values.on(m.shared, now_ms);
  if (!reply) return fail_values(reply.error());
  if (reply->to_author) ledger_.context.send_worker(worker.hello.incarnation, *reply->to_author);
  if (reply->to_all) ledger_.send(view.members, *reply->to_all);
}

// Every rank hears it from its worker, which leaves then.
void RunningView::fail_values(const Error& why) {
  ledger_.log("ranks of " + ledger_.in_words() + " cannot go on: " + why.message, LogLevel::kWarning);
  ledger_.send(view.members, ledger_.values.give_up(why));
}

void RunningView::welcome(std::uint32_t node) const {
  const std::uint64_t worker = view.members.at(node).worker;
  ledger_.context.send_worker(worker, welcome_message(ledger_, view, node));
  if (view.first.given) ledger_.context.send_worker(worker, *view.first.given);
}

// Told when it begins, when the answer is another one, and when it is over. Where nodes have clocks they do not wait
// for each other.
void RunningView::look_for_stall(std::uint64_t now_ms) {
  if (!has_rounds(ledger_.config()) || one_that_left(view.members)) return;  // those who finished begin no round
  StallWatch& stalls = ledger_.stalls;
  const auto before = std::exchange(stall_, std::nullopt);
  stalls.reached(Round(ledger_.paces.range().first.value), now_ms);
  if (stalls.quiet(now_ms)) stall_ = stalls.look(facts(), now_ms);
  const std::string& job = ledger_.in_words();
  if (stall_ && (!before || kind_of(before->why) != kind_of(stall_->why))) {
    ledger_.log(job + " has had no round for " + std::to_string(stall_->ms / 1000) + " s: " + stall_->why,
                LogLevel::kWarning);
  } else if (before && !stall_) {
    ledger_.log(job + " goes on after " + std::to_string(before->ms / 1000) + " s without a round");
  }
}

StallWatch::Facts RunningView::facts() const {
  const Peers& peers = ledger_.context.peers;
  StallWatch::Facts facts;
  facts.unheard_ms =
      std::clamp(ledger_.context.options.peer_timeout_ms / 2, StallWatch::kUnheardMs, 2 * StallWatch::kUnheardMs);
  std::uint32_t rank = 0;
  for (const auto& [node, member] : view.members) {
    const std::string name = "node " + std::to_string(node);
    if (const Peers::Worker* worker = peers.worker(member.worker))
      facts.peers.push_back({name + " (worker " + worker->hello.name + ")", worker->heard_ms});
    for (std::uint32_t local = 0; local < member.join.local_world_size; ++local, ++rank) {
      if (local < member.said.size()) facts.ranks.push_back({rank, name, member.said[local]});
    }
  }
  for (const std::uint16_t index : ledger_.shards()) {
    const auto server = peers.servers().find(index);
    if (server == peers.servers().end()) continue;
    facts.peers.push_back({"server " + std::to_string(index), server->second.heard_ms});
    facts.servers.push_back({index, ledger_.paces.min_version(index)});
  }
  facts.values = ledger_.values.waits();
  facts.snapshot = snapshot();
  facts.snapshot_waits = snapshot_waits();
  facts.durable = ledger_.record().committed;
  if (keeps_redo(ledger_.config(), view.members, peers)) facts.kept_most = redo_capacity(view.members);
  return facts;
}

std::vector<std::uint16_t> RunningView::snapshot_waits() const {
  std::vector<std::uint16_t> waits;
  for (const std::uint16_t index : ledger_.shards()) {
    if (snapshots_.awaits_part_of(index)) waits.push_back(index);
  }
  return waits;
}

std::optional<std::uint32_t> RunningView::node_beyond(Round round) const {
  for (const auto& [node, member] : view.members) {
    const auto beyond = [&](Round said) { return said > round; };
    if (!member.left && std::ranges::any_of(member.said, beyond)) return node;
  }
  return std::nullopt;
}

std::optional<RunningView::LeftBehind> RunningView::left_behind(const LeaveJob& first, std::uint64_t now_ms) {
  // The others finish when their ranks say so, which may evaluate first, as long as they like: a rank or worker that is
  // lost meanwhile ends the view. (If all had finished, the stop would have begun.)
  const std::string who = "node " + std::to_string(first.node.value) + " finished after round " +
                          std::to_string(first.round.value) + ", and ";
  if (!lagging_told_ms_) lagging_told_ms_ = now_ms + kTellLagMs;
  if (now_ms >= *lagging_told_ms_) {
    lagging_told_ms_ = ~0ull;
    ledger_.log("node " + std::to_string(first.node.value) + " of " + ledger_.in_words() + " finished after round " +
                std::to_string(first.round.value) + "; waiting for " + not_left(view.members) +
                ", whose ranks may have something to do still");
  }
  for (const auto& [node, member] : view.members) {
    if (!member.left) continue;
    const std::uint32_t ranks = member.join.local_world_size;
    const auto waits = ledger_.values.waits_for(rank_in_view(view.members, node, 0), ranks, now_ms);
    if (waits) return LeftBehind{stop_round(first.round), who + *waits};
  }
  // Where nodes have clocks they make as many rounds as they like.
  const auto beyond = has_rounds(ledger_.config()) ? node_beyond(first.round) : std::nullopt;
  if (!beyond) return std::nullopt;
  if (!beyond_) beyond_.emplace(kBeyondPatienceMs, now_ms);
  if (!beyond_->over(answers_of(view.members), now_ms)) return std::nullopt;
  return LeftBehind{stop_round(first.round), who + "node " + std::to_string(*beyond) +
                                                 " has begun another one: all ranks must make as many steps"};
}

// The chunks are to go to other servers, with a snapshot that is still to be made, and what ranks keep with it.
bool RunningView::look_for_change(std::uint64_t now_ms) {
  change_ready_ = false;
  if (!ledger_.change(now_ms)) {
    change_after_.reset();
    change_written_ms_.reset();
    return false;
  }
  if (!change_after_) change_after_ = Round(ledger_.paces.range().second.value);
  const Round written = newest_written();
  if (written <= *change_after_) return true;
  if (!change_written_ms_) change_written_ms_ = now_ms;
  const bool comes = ledger_.lacks_state(written, now_ms) || ledger_.keeper.fetch(written, now_ms);
  change_ready_ = !comes || (!ledger_.rewinds() && now_ms > *change_written_ms_ + kStatePatienceMs);
  return false;
}

std::optional<RunningView::LeftBehind> RunningView::tick(std::uint64_t now_ms) {
  look_for_stall(now_ms);
  look_at_first_round(now_ms);
  tell_addresses();
  if (const auto why = ledger_.values.mistake(now_ms)) fail_values(*why);
  if (const JobMember* finished = one_that_left(view.members)) return left_behind(*finished->left, now_ms);
  if (ledger_.servers() == 0) return std::nullopt;
  look_for_state(now_ms);
  if (to_checkpoint_) {
    if (ledger_.context.checkpoints.writes_from_memory(ledger_.config().name)) return std::nullopt;
    to_checkpoint_ = ledger_.store_broken = false;  // the stores are tried again first
    snapshots_.missed(now_ms);
  }
  look_for_copies(now_ms);
  const std::set<std::uint16_t> parts = ledger_.shards();
  if (snapshots_.overdue(ledger_.paces, parts, now_ms)) {
    ledger_.not_saved = kNotInTime;
    ledger_.log("snapshot of round " + std::to_string(snapshots_.under_way()->value) + " of " + ledger_.in_words() +
                    " did not come in time; another one is tried",
                LogLevel::kWarning);
    snapshots_.missed(now_ms);
  }
  if (stop_requested_) return std::nullopt;
  const JobRecord& record = ledger_.record();
  SnapshotSchedule::Wishes wishes;
  const bool changes = look_for_change(now_ms);
  wishes.awaited = ((node_waits() || saves()) && !copying_) || changes;
  if (now_ms >= ledger_.redo_due_ms && keeps_redo(ledger_.config(), view.members, ledger_.context.peers)) {
    wishes.redo_from = redo_snapshot_from(view, newest_written(), ledger_.paces);
  }
  const SnapshotSchedule::Step step = snapshots_.step(ledger_.paces, view.start.round, parts, wishes, now_ms);
  if (step.prepare) ledger_.send_servers(PrepareSnapshot{record.job, record.view});
  if (!step.named) return std::nullopt;
  const Round round = *snapshots_.under_way();
  if (step.gave_way) {
    ledger_.log("snapshot of round " + std::to_string(step.gave_way->value) + " of " + ledger_.in_words() +
                ", which is far, gives way to one of round " + std::to_string(round.value) + " for " + step.named);
  }
  ledger_.send(view.members, SnapshotAt{record.job, record.view, round});
  to_checkpoint_ = ledger_.store_broken && saves();
  if (to_checkpoint_) {
    ledger_.context.checkpoints.write(ledger_.config().name, ledger_.keeper.record_at(round), ledger_.nodes, parts,
                                      now_ms, record.view);
  } else {
    ledger_.send_servers(SnapshotAt{record.job, record.view, round});
  }
  return std::nullopt;
}

void RunningView::tell_again(const Peers::Server& server) const {
  const JobRecord& record = ledger_.record();
  const std::uint16_t shard = server.hello.shard.value;
  const auto tell = [&](const ControlMessage& message) { ledger_.context.output.send(server.peer, message); };
  // It may hold rounds back until it hears of a snapshot.
  const bool committed = record.initialised && !record.provisional && ledger_.keeper.told();
  if (committed) tell(SnapshotCommit{record.job, record.committed});
  if (snapshots_.awaits_memory_of(shard)) tell(PrepareSnapshot{record.job, record.view});
  if (snapshots_.awaits_part_of(shard) && !to_checkpoint_)
    tell(SnapshotAt{record.job, record.view, *snapshots_.under_way()});
}

void RunningView::tell_again(std::uint32_t node, const JobMember& member) const {
  if (member.left) return;
  const JobRecord& record = ledger_.record();
  const auto tell = [&](const ControlMessage& message) { ledger_.context.send_worker(member.worker, message); };
  welcome(node);
  addresses_.tell_all(node, tell);
  tell_stop(node, member);
  if (const auto round = snapshots_.under_way()) tell(SnapshotAt{record.job, record.view, *round});
}

void RunningView::request_stop(const std::string& reason) {
  if (std::exchange(stop_requested_, true)) return;
  ledger_.last_stop = reason;
  ledger_.log(ledger_.in_words() + " is asked to stop after its round: " + reason);
  for (const auto& [node, member] : view.members) tell_stop(node, member);
}

void RunningView::request_stop_of(std::uint32_t node) {
  JobMember& member = view.members.at(node);
  member.leaving = true;
  tell_stop(node, member);
}

void RunningView::tell_stop(std::uint32_t node, const JobMember& member) const {
  if (!whole_ || !(stop_requested_ || member.leaving)) return;
  const std::string reason = stop_requested_ ? ledger_.last_stop : "node " + std::to_string(node) + " was told to stop";
  ledger_.context.send_worker(member.worker, StopRequest{ledger_.record().job, ledger_.record().view, reason});
}

// Is the round that servers had a part of complete? Nodes that make none, for whatever reason, are not waited for long.
void RunningView::look_at_first_round(std::uint64_t now_ms) {
  if (whole_) return;
  const bool stops =
      stop_requested_ || std::ranges::any_of(view.members, [](const auto& entry) { return entry.second.leaving; });
  if (!stops) whole_answers_.renew(now_ms);
  whole_ = ledger_.paces.all_beyond(view.start.round) || whole_answers_.over(answers_of(view.members), now_ms);
  if (!whole_) return;
  for (const auto& [node, member] : view.members) tell_stop(node, member);
}

bool RunningView::goes_on_without(std::uint32_t node) const {
  if (!is_elastic(ledger_.config()) || ledger_.context.draining || stop_requested_) return false;
  const auto staying = std::ranges::count_if(
      view.members, [&](const auto& entry) { return entry.first != node && !entry.second.leaving; });
  return static_cast<std::uint32_t>(staying) >= ledger_.config().membership.min_nodes;
}

Status RunningView::lets_in(const JoinJob& m, const JobConfig& joining) {
  const std::string node = std::to_string(m.node.value);
  if (stop_requested_ || one_that_left(view.members)) {
    return fail(ErrorCode::kUnavailable, ledger_.in_words() + " is about to end; a later run can have node " + node);
  }
  // A node that does not fit must not end the view.
  const Status same = same_as_others(ledger_.in_words(), ledger_.record(), false, view.members, m, joining);
  if (!same) return same;
  if (ledger_.plan().has_rounds() && !ledger_.plan().push->keeps_residual()) return {};
  // It will go back to a snapshot: to a new one.
  const Round committed = ledger_.record().committed;
  if (!joins_after_) joins_after_ = committed;
  if (committed > *joins_after_) return {};
  return fail(ErrorCode::kUnavailable,
              ledger_.in_words() + " can have node " + node +
                  " after its next snapshot, because its mode or encoding goes back to one when nodes change");
}

// With synchronous rounds no chunk is before `left`. In modes of bounded staleness `left` is the count of that node
// alone, and the others stop wherever they are: the round is one that all of them are known to have passed on all
// chunks. The state that is kept records for each chunk which pushes beyond that it has, and they are not applied again
// when the job continues. (Heartbeats report the past: a snapshot may have been committed since, of a round that all
// have passed, too.)
Round RunningView::stop_round(Round left) const {
  if (!has_clocks(ledger_.config())) return left;
  Round passed = left;
  for (const std::uint16_t shard : ledger_.shards()) {
    passed = std::min(passed, Round(ledger_.paces.min_version(shard).value));
  }
  return std::max({passed, view.start.loaded, newest_written()});
}

}  // namespace tributary

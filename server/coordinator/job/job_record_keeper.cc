#include "server/coordinator/job/job_record_keeper.h"

#include <algorithm>
#include <utility>

#include "common/config/job_json.h"

namespace tributary {
namespace {

constexpr std::uint64_t kSaveRetryMs = 1'000;  // a record that could not be saved

}  // namespace

JobRecordKeeper::JobRecordKeeper(CoordinatorContext& context, const std::string& name, JobRecord record,
                                 std::set<JobId> older)
    : context_(context), name_(name), record_(std::move(record)), older_(std::move(older)) {
  edition_ = record_.edition;
  began_ = record_.view_nodes;  // or it was given up: who cannot know drops what nodes have kept
  if (record_.job.value != 0) context_.parts.holders().named(record_.job, large_parts_of(record_.rank_states));
}

std::set<JobId> JobRecordKeeper::ids() const {
  std::set<JobId> ids = older_;
  if (record_.job.value != 0) ids.insert(record_.job);
  if (opening_) ids.insert(opening_->job);
  return ids;
}

void JobRecordKeeper::set_committed(Round round, bool initialised) {
  if (round != record_.committed) {
    commit_rank_states(round);
    record_.provisional = record_.initialised;  // else there is none before
  }
  record_.initialised = initialised;
  record_.committed = round;
}

bool JobRecordKeeper::begin_another_training(const JoinJob& join) {
  const bool same = record_.tensors == join.tensors && same_training(record_.job_json, join.job_json);
  if (record_.initialised || same) return false;
  if (record_.job.value != 0) older_.insert(record_.job);
  JobRecord another;
  another.view = record_.view;
  another.tensors = join.tensors;
  record_ = std::move(another);
  return true;
}

void JobRecordKeeper::begin_view(JobId fresh_id, const JobMembers& members) {
  const JoinJob& join = members.begin()->second.join;
  before_ = record_;
  if (record_.job.value == 0) record_.job = fresh_id;
  record_.job_json = join.job_json;
  record_.members = nodes_of(members);
  record_.world_size = static_cast<std::uint32_t>(members.size()) * join.local_world_size;
  record_.view = std::max(record_.view, tried_).next();
  record_.finished = false;
  record_.view_nodes = {members_hash(record_.members, began_.since), began_.since, began_.first};
  if (began_.hash != 0 && began_.hash != record_.view_nodes.hash) {
    record_.view_nodes.since = record_.view;
    record_.view_nodes.hash = members_hash(record_.members, record_.view);
  }
}

void JobRecordKeeper::begin_anew(JobId fresh_id) {
  if (!context_.peers.stores(record_.job)) return;
  context_.output.log(
      in_words() + " begins anew, though servers' stores have parts of a snapshot of it: no snapshot is whole",
      LogLevel::kWarning);
  record_.job = fresh_id;
}

void JobRecordKeeper::give_view_up() {
  if (before_) record_ = *std::exchange(before_, std::nullopt);
}

Status JobRecordKeeper::may_begin_anew() const {
  for (const auto& [index, server] : context_.peers.servers()) {
    for (const StoredJob& stored : server.hello.stored) {
      if (stored.name != name_ || stored.snapshots.empty() || knows(stored.job)) continue;
      return fail(
          ErrorCode::kStore,
          "server " + std::to_string(index) + "'s store has " + newest_in_words(stored) + " of " + in_words() +
              " (job id " + std::to_string(stored.job.value) + "), which the registry in " +
              context_.peers.home_in_words() +
              "'s store does not know; it is not begun anew: start all servers with the stores that they had (is " +
              "[store] path of " + context_.peers.home_in_words() +
              " right?), or restore a checkpoint (tributary "
              "checkpoint restore --force), or delete what there is of it (tributary job remove " +
              name_ + ")");
    }
  }
  return {};
}

void JobRecordKeeper::save_view(const ViewStart& start, const JobMembers& members, DealtChunks chunks) {
  // A server may be a round further, with some chunks, than where a view begins: it was brought there by the nodes of a
  // view before. The nodes of this view make the rounds beyond that (again).
  const Round most = start.ahead ? start.round.next() : start.round;
  ViewNodes& nodes = record_.view_nodes;
  nodes.first = nodes.hash != began_.hash ? most.next() : std::min(nodes.first, most.next());
  if (start.anew()) record_.computed_with.clear();
  if (const auto mixed = add_kinds(record_.computed_with, members)) {
    context_.output.log(in_words() + " " + *mixed, LogLevel::kWarning);
  }
  record_.chunk_elements = chunks.elements;
  record_.owners = std::move(chunks.owners);
  tried_ = record_.view;
  opening_ = std::exchange(record_, *std::exchange(before_, std::nullopt));
  opening_->edition = ++edition_;
  saving_ = true;
  context_.output.save(*opening_);
}

void JobRecordKeeper::view_saved(bool saved, bool opens) {
  saving_ = false;
  JobRecord opening = *std::exchange(opening_, std::nullopt);
  const bool another = record_.job != opening.job;
  if (saved && (opens || another)) {
    if (another && record_.job.value != 0) older_.insert(record_.job);
    record_ = std::move(opening);
  } else if (saved && state_ == State::kSaved) {
    state_ = State::kUnsaved;  // the disk has a view that nobody will hear of: servers keep state of the one before
  }
  part_is_there();  // what came meanwhile
}

void JobRecordKeeper::view_opens(const ViewStart& start, const JobMembers& members) {
  // Later snapshots that only some shards have belong to rounds that this view will go through again.
  context_.peers.forget_snapshots(record_.job, [&](Round r) { return !start.resume || r > start.loaded; });
  std::map<std::uint32_t, PendingRankStates::Holder> holders;
  for (const auto& [node, member] : members) holders[node] = {member.worker, member.join.local_world_size};
  rank_states_.begin_view(std::move(holders), start.round, start.anew(),
                          record_.initialised ? std::optional(record_.committed) : std::nullopt);
  start_ = start.round;
  held_ = {};
  if (state_ == State::kSaved) drop_parts();  // else saved() drops them
}

void JobRecordKeeper::view_runs(const ViewStart& start) {
  began_ = record_.view_nodes;
  // Ranks whose state is not in the snapshot begin it anew, which nobody else would notice.
  if (record_.rank_states.empty() || !start.resume || start.round != record_.committed) return;
  const auto [ranks, there] = rank_states_.coverage(record_.rank_states);
  if (there == ranks) return;
  context_.output.log("of " + in_words() + " " + std::to_string(ranks - there) + " of " + std::to_string(ranks) +
                      " ranks have nothing that they kept with the snapshot of round " +
                      std::to_string(record_.committed.value) + ", and begin that anew");
}

void JobRecordKeeper::commit(Round round, bool finished) {
  commit_rank_states(round);
  record_.committed = round;
  record_.initialised = true;
  record_.provisional = false;
  record_.finished = finished;
  commit_untold_ = true;
  save();
}

JobRecord JobRecordKeeper::record_at(Round round) const {
  JobRecord record = record_;
  record.rank_states = rank_states_at(round);
  record.committed = round;
  return record;
}

RankStates JobRecordKeeper::rank_states_at(Round round) const {
  RankStates states = record_.committed == round ? record_.rank_states : RankStates();
  for (auto& [rank, state] : rank_states_.of(round, there())) states.insert_or_assign(rank, std::move(state));
  return states;
}

void JobRecordKeeper::tick(std::uint64_t now_ms) {
  if (!saved() && !saving_ && now_ms >= save_due_ms_) save();
}

void JobRecordKeeper::save() {
  if (state_ == State::kSaved) state_ = State::kUnsaved;
  changed_ = saving_;
  if (std::exchange(saving_, true)) return;
  record_.edition = ++edition_;
  context_.output.save(record_);
}

bool JobRecordKeeper::saved(const Status& status, std::uint64_t now_ms) {
  saving_ = false;
  save_due_ms_ = now_ms + kSaveRetryMs;
  if (changed_) {
    save();
    return false;
  }
  const State before = std::exchange(state_, status ? State::kSaved : State::kFailing);
  if (!status) {
    if (before == State::kFailing) return false;
    context_.output.log("cannot record round " + std::to_string(record_.committed.value) + " of " + in_words() +
                            ", and tries again: " + status.error().message,
                        LogLevel::kError);
    return false;
  }
  if (before == State::kFailing) context_.output.log("the record of " + in_words() + " is saved again");
  drop_parts();
  if (!std::exchange(commit_untold_, false)) return false;
  context_.peers.forget_snapshots(record_.job, [&](Round older) { return older < record_.committed; });
  return true;
}

void JobRecordKeeper::commit_rank_states(Round round) {
  for (const std::string& left_out : rank_states_.commit(record_, round, there())) {
    context_.output.log("what ranks keep of " + in_words() + " " + left_out);
  }
}

PendingRankStates::There JobRecordKeeper::there() const {
  return [this](const LargePart& large) { return context_.parts.has(record_.job, large); };
}

void JobRecordKeeper::keep(std::uint64_t worker, const NodeRankState& m, std::uint64_t now_ms) {
  if (record_.view != m.view || m.kept.round < record_.committed || !rank_states_.give(worker, m)) return;
  ++given_;
  if (const LargePart large = StateHead::of(m.kept.state).large) {
    context_.parts.announce(record_.job, in_words(), large, worker);
    // Other ranks may want the state of the round where the view begins; no snapshot will have it.
    const bool late = record_.initialised && m.kept.round == record_.committed;
    if (late || m.kept.round > start_) context_.parts.want(record_.job, large, now_ms);
  }
  part_is_there();
}

void JobRecordKeeper::part_is_there() {
  if (opening_ || !record_.initialised || !rank_states_.can_commit(record_.committed, there())) return;
  commit_rank_states(record_.committed);  // the snapshot was faster
  // Saved with the next tick: those of other ranks follow.
  if (state_ == State::kSaved) state_ = State::kUnsaved;
  if (saving_) changed_ = true;
}

std::optional<std::string> JobRecordKeeper::copy_of_state() const {
  for (const LargePart& large : large_parts_of(record_.rank_states)) {
    if (context_.parts.has(record_.job, large)) continue;
    const auto server = context_.parts.holders().any_with({record_.job, large});
    if (server) return context_.peers.daemon_in_words(*server);
  }
  return std::nullopt;
}

bool JobRecordKeeper::fetch(Round round, std::uint64_t now_ms) {
  LargeParts& parts = context_.parts;
  bool comes = false;
  for (const LargePart& large : rank_states_.large_parts(round)) {
    comes |= !parts.has(record_.job, large) && parts.want(record_.job, large, now_ms);
  }
  if (round != record_.committed) return comes;
  for (const LargePart& large : large_parts_of(record_.rank_states)) {  // that the store has lost, and a server has
    const bool lost = !parts.has(record_.job, large) && parts.stored(record_.job, large);
    comes |= lost && parts.want(record_.job, large, now_ms);
  }
  return comes;
}

void JobRecordKeeper::drop_parts() {
  std::set<LargePart> wanted = rank_states_.large_parts({});
  wanted.merge(context_.checkpoints.large_parts(record_.job));
  wanted.merge(large_parts_of(record_.rank_states));
  wanted.insert(held_);
  context_.parts.keep_only(record_.job, wanted);
}

void JobRecordKeeper::rank_states(JobWelcome& welcome, std::uint32_t node, const ViewStart& start) const {
  const bool committed = start.resume && start.round == record_.committed;
  // A part that is not here yet may come from a worker that has it.
  const auto to_be_had = [&](const LargePart& large) { return context_.parts.to_be_had(record_.job, large); };
  rank_states_.fill_in(welcome, node, committed ? &record_.rank_states : nullptr, start.round, to_be_had);
}

std::vector<std::byte> JobRecordKeeper::whole_state(const ViewStart& start) const {
  return start.anew() ? std::vector<std::byte>() : first_whole(start.round);
}

std::vector<std::byte> JobRecordKeeper::first_whole(Round round) const {
  const bool committed = record_.initialised && round == record_.committed;
  return rank_states_.first_whole(committed ? &record_.rank_states : nullptr, round, there());
}

void JobRecordKeeper::stop(const std::string& reason) {
  record_.last_stop = reason;
  record_.members.clear();
}

void JobRecordKeeper::end(Round round, bool finished) {
  record_.committed = round;
  record_.finished = finished;
  save();
}

bool JobRecordKeeper::has_older_on(std::uint16_t server) const {
  return std::ranges::any_of(older_, [&](JobId id) { return !context_.peers.snapshots(server, id).empty(); });
}

void JobRecordKeeper::drop_older(bool again) {
  for (const JobId id : older_) {
    context_.parts.forget(id);
    if (!context_.peers.stores(id)) {
      // A server that is away may have something of it, too.
      if (context_.peers.all_servers()) context_.remove(id);
      continue;
    }
    for (const auto& [index, server] : context_.peers.servers()) {
      const auto& stored = server.hello.stored;
      if (!server.alive || std::ranges::find(stored, id, &StoredJob::job) == stored.end()) continue;
      if (!dropping_.emplace(server.hello.incarnation, id).second && !again) continue;
      context_.output.send(server.peer, DropCheckpoint{id, {}});
    }
  }
}

}  // namespace tributary

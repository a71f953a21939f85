#include "tests/sim/judge/cluster_judge.h"

#include <algorithm>
#include <cstring>

#include "common/base/checksum.h"
#include "common/config/job_json.h"
#include "common/config/optimizer_config.h"
#include "common/config/schedule.h"
#include "common/wire/redo_plan.h"
#include "server/coordinator/coordinator_core.h"
#include "tests/sim/disk/disk_sim.h"

namespace tributary::sim {
namespace {

std::uint64_t hash_of(const std::vector<std::span<const std::byte>>& parts) {
  Checksum64 sum;
  for (const std::span<const std::byte> part : parts) sum.add(part.data(), part.size());
  return sum.value();
}

}  // namespace

ClusterJudge::ClusterJudge(const ClusterScenario& scenario, const std::vector<Disk>& disks, ClusterOutcome& outcome,
                           Held held, Broken broken, ReplicasJudge* replicas)
    : scenario_(scenario),
      disks_(disks),
      outcome_(outcome),
      held_(std::move(held)),
      broken_(std::move(broken)),
      replicas_(replicas) {}

ClusterJudge::View* ClusterJudge::view(JobId job, ViewId id) {
  const auto found = views_.find({job, id});
  return found == views_.end() ? nullptr : &found->second;
}

bool ClusterJudge::keeps_residual() const {
  return make_encoding(setup_.push)->keeps_residual();
}

// ---- The coordinator ----

void ClusterJudge::recorded(std::uint64_t coordinator, const JobRecord& record) {
  if (began_as_ != 0 && record.view_nodes.hash != began_as_) others_recorded_.insert(coordinator);
  recorded_ = record.committed;
}

void ClusterJudge::opens(std::uint64_t coordinator, const OpenJob& open, std::uint16_t shard,
                         const std::vector<std::uint32_t>& nodes) {
  if (View* known = view(open.job, open.view)) {
    if (known->coordinator != coordinator || known->open.resume != open.resume ||
        known->open.resume_round != open.resume_round || known->open.owners != open.owners || known->nodes != nodes) {
      broken_(in_words("view", open.view.value) + " was given out twice");
    }
  } else {
    const bool anew = !open.resume && !open.kept;
    const auto stranger = anew && any_commit_ ? losses_.has_another(open.job) : std::nullopt;
    if (stranger) {
      broken_("the job begins anew, and " + in_words("server", *stranger) + " has said that it has snapshots of it");
    }
    if (open.resume) check_cut(open.job, open.resume_round, "a view begins at ");
    if (const auto dealt = dealt_.find(open.job); dealt != dealt_.end()) {
      if (newest_ && newest_->open.job != open.job) {
        restored(dealt->second);
        ++outcome_.dealt;
      }
    }
    if (newest_ && newest_->open.job != open.job && !restored_ && anew && !any_commit_) {
      restored(Round());
      any_commit_ = false;
    }
    if (newest_ && newest_->open.job != open.job && !restored_) {
      began_anew_ = true;  // nobody has anything of it, so there is nothing more to be judged
      if (open.resume || open.kept || !(losses_.any() || replaced_))
        broken_("a view opens of another job than there is");
      return;
    }
    restored_ = false;
    if (newest_ && newest_->open.job == open.job && newest_->open.view >= open.view) {
      broken_(in_words("view", open.view.value) + " opens after " + in_words("view", newest_->open.view.value));
    }
    // Servers let go of what only the nodes before could go on with, even if the view never begins.
    if (!began_with_.empty() && nodes != began_with_) residuals_lost_ = true;
    if (nodes.size() != open.nodes) broken_(in_words("view", open.view.value) + " does not count its nodes");
    went_back_ = scenario_.rewinds && (open.resume ? open.resume_round.value : 0) < complete_;
    if (!setup_.layout) set_up(open);
    View& fresh = views_[{open.job, open.view}];
    fresh.number = ++outcome_.views;
    fresh.coordinator = coordinator;
    fresh.open = open;
    fresh.nodes = nodes;
    fresh.deaths = deaths_;
    begin(fresh);
    newest_ = &fresh;
  }
  emptied_.erase(shard);
  View& opened = *view(open.job, open.view);
  for (std::uint32_t c = 0; c < open.owners.size(); ++c) {
    if (open.owners[c].shard.value != shard) continue;
    if (open.kept) opened.versions.erase(c);  // as the server has it
    if (!open.kept) opened.versions[c] = open.resume ? open.resume_round.value : 0;
  }
  if (open.kept) opened.kept.insert(shard);
  ++(open.kept ? outcome_.kept : outcome_.restored);
}

// Checks that a view begins with one cut: snapshots of one view, because a repeated round may give other bits. No copy is
// of another one, either.
void ClusterJudge::check_cut(JobId job, Round round, const std::string& what) const {
  // A view that made no round has what the one before had.
  const auto made_in = [&](ViewId view) {
    for (auto at = views_.find({job, view}); at != views_.end() && at->first.first == job; --at) {
      view = at->first.second;
      if ((at->second.welcomed && at->second.start != round.value) || at == views_.begin()) break;
    }
    return view;
  };
  std::set<ViewId> views;
  for (const Disk& disk : disks_) {
    for (const Disk::Snapshot* part : disk.parts(job, round)) views.insert(made_in(part->view));
  }
  if (views.size() > 1) {
    broken_(what + in_words("round", round.value) + " with parts of snapshots of " +
            in_words("view", views.begin()->value) + " and " + in_words("view", views.rbegin()->value));
  }
}

void ClusterJudge::set_up(const OpenJob& open) {
  const Result<JobConfig> config = job_from_json(open.job_json);
  setup_ =
      setup_of(scenario_, *config,
               std::make_shared<const Layout>(*Layout::with_owners(open.tensors, open.chunk_elements, open.owners)));
  if (synchronous() && !scenario_.elastic && !scenario_.deadline) {
    rounds_ = std::make_unique<RoundsJudge>(setup_, broken_);
  }
  reached_.resize(setup_.layout->chunks());
  stepped_in_.resize(setup_.layout->chunks());
}

void ClusterJudge::begin(View& view) {
  if (!synchronous()) return begin_clocks(view);
  view.sync = rounds_.get();
  if (rounds_) return;
  view.members =
      std::make_unique<MembersJudge>(setup_, view.nodes, newest_ ? newest_->members.get() : nullptr, broken_);
  view.sync = view.members.get();
}

void ClusterJudge::begin_clocks(View& view) {
  SavedState saved(setup_.layout->chunks());
  if (view.open.resume) {
    std::set<ChunkIndex> found;
    for (const Disk& disk : disks_) {
      for (const Disk::Snapshot* part : disk.parts(view.open.job, view.open.resume_round)) {
        (void)part->read([&](ChunkIndex index, const ChunkState& state) -> Status {
          saved[index.value] = saved_of(state);
          found.insert(index);
          return {};
        });
      }
    }
    if (found.size() != saved.size() && !disk_hurt()) broken_("a view begins at a snapshot that the disks do not have");
  }
  JudgeSetup setup = setup_;
  setup.nodes = view.open.nodes;
  setup.start = view.open.resume ? view.open.resume_round : Round();
  const SavedState* begins_with = view.open.resume ? &saved : nullptr;
  view.clocks = std::make_unique<ClocksJudge>(setup, begins_with, broken_);
}

// The round that a view must not begin before.
std::uint64_t ClusterJudge::floor(const View& view) const {
  const bool residuals_gone = keeps_residual() && (residuals_lost_ || lost_before_ || !scenario_.redo);
  if (!synchronous() || residuals_gone || scenario_.rewinds) return any_commit_ ? committed_.value : 0;
  if (scenario_.goes_on && !any_commit_) return 0;  // it begins anew on the servers that stay
  if (!server_lost_ && behind_.empty()) return complete_;
  if (last_failed_) return committed_.value;
  if (!any_commit_) return 0;
  // Rings have at most their number of rounds, the open one among them.
  const bool fits = complete_ + 1 <= committed_.value + scenario_.ring_rounds;
  const bool covered = scenario_.redo && !ring_gap_ && fits;
  // The decision about a round is lost with its server if no node had an answer of that round.
  const bool undecided = setup_.gate && complete_ > committed_.value;
  // A new coordinator does not know where the view before began: a shard that was being brought up to there, and lacked
  // its last round only, looks like one for which that round was open.
  const bool unknown = !behind_.empty() && view.coordinator != began_under_ && complete_ > committed_.value;
  return covered ? complete_ - (undecided || unknown ? 1 : 0) : committed_.value;
}

void ClusterJudge::welcome(const JobWelcome& welcome, std::uint32_t node) {
  if (replicas_) return replicas_->welcome(welcome);
  View* begun = view(welcome.job, welcome.view);
  if (!begun) return broken_("a view begins that never opened");
  const std::uint32_t place = welcome.node.value;
  if (welcome.nodes != begun->nodes.size() || place >= welcome.nodes || begun->nodes[place] != node ||
      (begun->welcomed && welcome.members != began_as_)) {
    broken_(in_words("node", node) + " is welcome as " + in_words("node", place) + " of " +
            std::to_string(welcome.nodes) + " in " + in_words("view", welcome.view.value) + ", which has other nodes");
  }
  if (std::exchange(begun->welcomed, true)) return;
  // Rings have sums for the nodes of a round, which are not these: as if they had been lost.
  const std::vector<std::uint32_t> before = std::exchange(began_with_, begun->nodes);
  const bool others = !before.empty() && before != begun->nodes;
  if (others) ++outcome_.memberships;
  check_rings(*begun, welcome.members, others);
  const std::uint64_t start = welcome.resume_round.value;
  const auto said = std::exchange(stopped_, std::nullopt);
  if (said && scenario_.calm && synchronous() && *said == committed_ && start != said->value) {
    broken_("a view begins at " + in_words("round", start) + ", but the last one ended cleanly at " +
            in_words("round", said->value));
  }
  // The round that was open may be complete in the nodes' rings.
  if (synchronous() && start > complete_ + 1) {
    broken_("a view begins at " + in_words("round", start) + ", beyond " + in_words("the complete round", complete_));
  }
  if (const std::uint64_t least = floor(*begun); start < least) {
    broken_("a view begins at " + in_words("round", start) + ", but " + in_words("round", least) +
            " can be had (complete: " + std::to_string(complete_) + ", committed: " + std::to_string(committed_.value) +
            (server_lost_ ? ", a server was lost" : "") + (ring_gap_ ? ", a ring was lost" : "") + ")");
  }
  if (start > begun->open.resume_round.value && welcome.redo_after != std::vector<Version>{}) {
    const bool redo = std::ranges::any_of(welcome.redo_after, [&](Version v) { return v.value < start; });
    outcome_.redone += redo ? 1 : 0;
  }
  behind_.clear();
  if (synchronous()) {
    for (std::uint32_t c = 0; c < reached_.size(); ++c) {
      // A kept shard may have gone back to a snapshot in a view that opened but never began.
      const ChunkOwner& owner = begun->open.owners[c];
      const bool kept = begun->kept.contains(owner.shard.value);
      const auto held = kept ? held_(owner, welcome.job, welcome.view, ChunkIndex(c)) : std::nullopt;
      const std::uint64_t has = kept ? held.value_or(Version(start)).value : begun->open.resume_round.value;  // 0: none
      if (has < start) behind_.insert(c);
      reached_[c] = std::max(held.value_or(Version(start)).value, start);
      if (begun->members) begun->members->forget_after(ChunkIndex(c), reached_[c]);
    }
    complete_ = *std::ranges::min_element(reached_);
    // A server may know the decision about the open round, even if none of its chunks has been through that round.
    const std::uint64_t known = *std::ranges::max_element(reached_) + (begun->kept.empty() ? 0 : 1);
    if (begun->members && before != begun->nodes) begun->members->forget_decisions_after(known);
  }
  began_under_ = begun->coordinator;
  server_lost_ = deaths_ != begun->deaths;
  last_failed_ = told_lost_ = false;
  lost_before_ |= std::exchange(residuals_lost_, false);
  begun->start = start;
  if (!ring_gap_ || gap_until_) return;
  // Chunks that servers kept have sums of the other nodes in the round that those had opened.
  gap_until_ = others && synchronous() ? Round(*std::ranges::max_element(reached_)) : welcome.resume_round;
}

// Checks that pushes kept in views of other nodes, or before those, are not used, and that others are. A coordinator
// that came after the record of such a view does not know that the view never began.
void ClusterJudge::check_rings(const View& begun, std::uint64_t name, bool others) {
  const bool fresh = called_.insert(name).second;
  const bool unknown = std::ranges::any_of(others_recorded_, [&](std::uint64_t by) { return by != begun.coordinator; });
  const bool goes_on = !others && name == began_as_;
  const bool anew = !begun.open.resume && begun.kept.empty();  // then nobody pushes anything again
  if (others && !fresh && !anew) broken_("pushes of an earlier view's nodes are taken for those of this one's");
  if (!others && !goes_on && began_as_ != 0 && !unknown) broken_("pushes that nodes have kept are given up");
  if (!goes_on && began_as_ != 0) ring_lost();
  began_as_ = name;
  others_recorded_.clear();
}

void ClusterJudge::deals(const DealChunks& deal) {
  if (any_commit_ && deal.round < committed_) {
    broken_("chunks go to other servers with the state of " + in_words("round", deal.round.value) + ", and " +
            in_words("round", committed_.value) + " is committed");
  }
  check_cut(deal.before, deal.round, "chunks go to other servers with ");
  dealt_[deal.job] = deal.round;
}

void ClusterJudge::restored(Round round) {
  restored_ = any_commit_ = true;
  committed_ = round;
  std::ranges::fill(reached_, round.value);
  std::ranges::fill(stepped_in_, 0);
  complete_ = round.value;
  server_lost_ = residuals_lost_ = true;
  ring_gap_ = last_failed_ = false;
  behind_.clear();
  gap_until_.reset();
  began_with_.clear();
  began_as_ = 0;
  called_.clear();
  others_recorded_.clear();
}

std::optional<std::span<const float>> ClusterJudge::right(ViewId view, ChunkIndex chunk, Round version) const {
  // The newest view of any job id: views count on when chunks go to other servers, and begin again with a new registry.
  const SyncJudge* judge = nullptr;
  std::pair<ViewId, std::uint64_t> newest;
  for (const auto& [id, known] : views_) {
    const std::pair order(id.second, known.number);
    if (id.second > view || order < newest || !known.sync) continue;
    newest = order;
    judge = known.sync;
  }
  return judge ? std::optional(judge->master(chunk, version.value)) : std::nullopt;
}

void ClusterJudge::committed(Round round) {
  if (any_commit_ && round < committed_) broken_("an older snapshot was committed after a newer one");
  committed_ = round;
  any_commit_ = true;
  losses_.committed(round);
  if (newest_) check_cut(newest_->open.job, round, "a snapshot is committed of ");
  ++outcome_.commits;
  if (gap_until_ && round >= *gap_until_) {
    ring_gap_ = false;
    gap_until_.reset();
  }
}

void ClusterJudge::decides(const RoundDecision& decision) {
  View* of = view(decision.job, decision.view);
  if (!of) return broken_("a round of a view that never opened is decided about");
  if (of->members && of->members->decides(decision.round, decision.decision)) ++outcome_.inherited;
}

void ClusterJudge::stops_at(Round round) {
  if (synchronous() && scenario_.calm && stopped_ && *stopped_ != round) {
    broken_("the job stops at " + in_words("round", round.value) + ", and somebody was told " +
            in_words("round", stopped_->value));
  }
  stopped_ = round;
}

void ClusterJudge::last_state_failed(std::uint16_t shard) {
  if (!has_part(shard)) return;  // nobody waits for its word
  last_failed_ = true;
  if (scenario_.calm && synchronous() && !disturbed_) broken_("a calm stop does not commit its last round");
}

void ClusterJudge::look_at_copies(JobId job, ViewId view, const std::set<std::uint16_t>& servers) const {
  for (const std::uint16_t server : servers) {
    if (server == 0) continue;
    const Disk& disk = disks_[server];
    const auto copy = disk.jobs.find(job);
    if (disk.was_full || emptied_.contains(server) || (copy != disk.jobs.end() && copy->second.record.view >= view))
      continue;
    broken_(in_words("view", view.value) + " begins, and " + in_words("server", server) + " has no copy of its record");
  }
}

bool ClusterJudge::has_copy() const {
  for (std::size_t server = 1; server < disks_.size(); ++server) {
    for (const auto& [id, kept] : disks_[server].jobs) {
      const Result<JobConfig> config = job_from_json(kept.record.job_json);
      if (config && config->name == scenario_.job) return true;
    }
  }
  return false;
}

Round ClusterJudge::written() const {
  Round newest;
  if (!newest_) return newest;
  const JobId job = newest_->open.job;
  for (const auto& [handle, snapshot] : disks_[newest_->open.owners.front().shard.value].snapshots) {
    const Round round = snapshot.info.round;
    const bool everywhere = std::ranges::all_of(newest_->open.owners, [&](const ChunkOwner& owner) {
      return disks_[owner.shard.value].has(job, owner.shard, round);
    });
    if (snapshot.info.job == job && everywhere) newest = std::max(newest, round);
  }
  return newest;
}

bool ClusterJudge::part_is_somewhere(std::uint16_t shard, Round round) const {
  return newest_ && std::ranges::any_of(disks_, [&](const Disk& disk) {
           return disk.has(newest_->open.job, ShardIndex(shard), round);
         });
}

bool ClusterJudge::has_part(std::uint16_t shard) const {
  return newest_ &&
         std::ranges::any_of(newest_->open.owners, [&](const ChunkOwner& owner) { return owner.shard.value == shard; });
}

bool ClusterJudge::is_behind(std::uint16_t shard) const {
  return std::ranges::any_of(behind_, [&](std::uint32_t c) { return newest_->open.owners[c].shard.value == shard; });
}

void ClusterJudge::joins(std::uint32_t node) {
  if (!scenario_.elastic || !newest_ || !newest_->welcomed) return;
  if (std::ranges::find(newest_->nodes, node) == newest_->nodes.end()) node_disturbed();
}

void ClusterJudge::server_ends(std::uint16_t shard, bool said) {
  ++outcome_.drained;
  outcome_.unsaved += said ? 1 : 0;
  const bool known = told_lost_;  // by one before, and no view has begun since
  told_lost_ |= said;
  // A view has opened since that begins with a snapshot: servers have dropped what they had.
  if (newest_ && !newest_->welcomed && newest_->kept.empty()) return;
  // Where all have written a round that the record names, copies of it may still be on their way.
  const Round safe = std::max(committed_, written());
  if (known || !scenario_.calm || !synchronous() || !has_part(shard) || complete_ <= safe.value) return;
  const std::string what = in_words("round", complete_) + " is complete, and committed is " +
                           in_words("round", committed_.value) + " when " + in_words("server", shard) + " ends cleanly";
  // A view of other nodes that has opened since may have given up what only the nodes before could go on with.
  const bool given_up = (keeps_residual() && residuals_lost_) || went_back_;
  // A server that was still being brought up to the others has nothing to lose.
  if (!said && !given_up && !is_behind(shard)) broken_(what + " and says nothing");
  // Servers can write the state that they keep if all have one round of it, and no node has something yet to say.
  const bool mixed = std::ranges::any_of(reached_, [&](std::uint64_t version) { return version != complete_; });
  const bool may_lose =
      disturbed_ && (mixed || !behind_.empty() || keeps_residual() || scenario_.rewinds || server_lost_);
  if (!may_lose) broken_(what);
}

void ClusterJudge::server_ended() {
  if (!scenario_.calm || (synchronous() && complete_ > committed_.value)) server_died();
}

void ClusterJudge::store_lost(std::uint16_t shard) {
  server_lost_ = true;
  emptied_.insert(shard);
  losses_.store_lost(shard, has_part(shard) || shard < scenario_.coordinators);
}

void ClusterJudge::ring_lost() {
  ring_gap_ = residuals_lost_ = true;
  gap_until_.reset();
}

// ---- Servers ----

void ClusterJudge::push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) {
  View* of = view(push.key.job, push.key.view);
  if (!of) return broken_("a push is of a view that never opened");
  const std::uint32_t chunk = push.key.chunk.value;
  const std::uint32_t node = of->nodes.at(push.key.node.value);
  const std::size_t frame_bytes = make_encoding(setup_.push)->bytes(setup_.layout->chunk(push.key.chunk).elements);
  const std::uint64_t hash =
      Checksum64().add(&push.weight, sizeof push.weight).add(frame.data(), std::min(frame.size(), frame_bytes)).value();
  if (push.residual != ResidualUse::kAlone && !made_.contains({node, chunk, push.round.value, hash})) {
    broken_(in_words("node", node) + " pushes " + in_words("round", push.round.value) + " of " +
            in_words("chunk", chunk) + " as it has never made it");
  }
  if (of->members) of->members->push_arrives(core, push, frame);
  if (synchronous()) {
    // A kept chunk may be a round further than the view's beginning.
    const std::uint64_t version = core.version(push.key.chunk).value;
    if (of->versions.try_emplace(chunk, version).second) {
      reach(chunk, version);
      if (core.params(push.key.chunk).empty() ||
          !same_bits(core.params(push.key.chunk), of->sync->master(push.key.chunk, version))) {
        broken_(in_words("chunk", chunk) + " at " + in_words("version", version) + " was kept with other bits");
      }
    }
  } else {
    of->clocks->push_arrives(core, push, frame);
  }
}

void ClusterJudge::push_handled(const ShardCore& core, const Push& push) {
  View* of = view(push.key.job, push.key.view);
  if (!of) return;
  if (!synchronous()) return of->clocks->push_handled();
  look_at(*of, core, push.key.chunk);
}

void ClusterJudge::query_handled(const ShardCore& core, const Query& query) {
  View* of = view(query.key.job, query.key.view);
  // It may have found a block for a round that had waited for one.
  if (of && of->sync && of->versions.contains(query.key.chunk.value)) look_at(*of, core, query.key.chunk);
}

void ClusterJudge::decided(const ShardCore& core) {
  View* of = view(core.job().view->job, core.job().view->view);
  if (!of || !core.initialised()) return;
  for (const ChunkIndex chunk : core.job().view->layout->chunks_owned_by(core.job().shard, core.job().lane)) {
    if (of->versions.contains(chunk.value)) look_at(*of, core, chunk);
  }
}

// Has it made a step?
void ClusterJudge::look_at(View& of, const ShardCore& core, ChunkIndex index) {
  const std::uint32_t chunk = index.value;
  const std::uint64_t version = core.version(index).value;
  std::uint64_t& known = of.versions[chunk];
  if (version == known) return;
  const std::string where = in_words("chunk", chunk) + " at " + in_words("version", version);
  if (version != known + 1) return broken_(where + " was at " + in_words("version", known) + " a step before");
  known = version;
  if (version > scenario_.rounds)
    return broken_(where + ", but there are no more than " + in_words("rounds:", scenario_.rounds));
  if (stepped_in_[chunk] > of.open.view.value) {
    broken_(where + " was made in " + in_words("view", of.open.view.value) + " after " +
            in_words("view", stepped_in_[chunk]) + " had begun to make rounds");
  }
  stepped_in_[chunk] = of.open.view.value;
  of.sync->stepped(index, version, version <= of.start);
  if (!same_bits(core.params(index), of.sync->master(index, version))) {
    broken_(where + " has not the reference's bits on its server");
  }
  reach(chunk, version);
  if (version >= of.start) behind_.erase(chunk);
}

void ClusterJudge::reach(std::uint32_t chunk, std::uint64_t version) {
  reached_[chunk] = std::max(reached_[chunk], version);
  const std::uint64_t before = std::exchange(complete_, *std::ranges::min_element(reached_));
  if (complete_ > before) lost_before_ = false;
  const bool later = disturbed_ && newest_ && newest_->welcomed && newest_->open.view > *disturbed_;
  if (complete_ > before && later) disturbed_.reset();
}

void ClusterJudge::answers(const Answer& answer, std::span<const std::byte> payload) {
  if (synchronous()) return;
  if (View* of = view(answer.key.job, answer.key.view)) of->clocks->answers(answer, payload);
}

void ClusterJudge::restores(const ShardCore& core, ChunkIndex chunk, const ChunkState& state) {
  View* of = view(core.job().view->job, core.job().view->view);
  if (!of || !of->members) return;
  std::vector<std::span<const std::byte>> residuals;
  for (const NodeResidual& residual : state.residuals) residuals.push_back(residual.bytes());
  if (!residuals.empty() && !residuals_.contains({chunk.value, state.version.value, hash_of(residuals)})) {
    broken_("a server begins with residuals of " + in_words("chunk", chunk.value) + " that no snapshot of it has had");
  }
  if (of->members->restored(chunk, state)) ++outcome_.gathered;
}

void ClusterJudge::captured(const ChunkSnapshot& snapshot) {
  View* of = view(snapshot.job, snapshot.view);
  if (of && of->clocks) of->clocks->captured(snapshot);
}

void ClusterJudge::snapshot_read(const ChunkSnapshot& snapshot) {
  View* of = view(snapshot.job, snapshot.view);
  if (!of) return;
  of->judge().snapshot_read(snapshot, snapshot.state.params.floats());
  if (!of->members || snapshot.state.residuals.empty()) return;
  std::vector<std::span<const std::byte>> residuals;
  for (const NodeResidual& held : snapshot.state.residuals) residuals.push_back(held.bytes());
  residuals_.emplace(snapshot.chunk.value, snapshot.state.version.value, hash_of(residuals));
}

// ---- The end ----

void ClusterJudge::ended() {
  if (replicas_) return replicas_->ended();
  // A coordinator may record the last commit, and die before it tells anybody.
  if (std::max(committed_, recorded_).value != scenario_.rounds) {
    broken_("the last snapshot is of " + in_words("round", committed_.value) + " when all is done");
  }
  std::set<ChunkIndex> chunks;
  for (const Disk& disk : disks_) {
    for (const Disk::Snapshot* part : disk.parts(newest_->open.job, Round(scenario_.rounds))) {
      if (!part->synced()) broken_("a chunk of the last snapshot is not on the disk");
      (void)part->read([&](ChunkIndex index, const ChunkState& state) -> Status {
        chunks.insert(index);
        if (synchronous() && !same_bits(state.params.floats(), newest_->sync->master(index, scenario_.rounds))) {
          broken_("the last snapshot has not the reference's bits");
        }
        return {};
      });
    }
  }
  // A disk may lose chunks after its server has acknowledged the last snapshot.
  if (chunks.size() != setup_.layout->chunks() && !disk_hurt()) broken_("the last snapshot lacks chunks");
}

}  // namespace tributary::sim

#include "server/kept_views.h"

#include <algorithm>

namespace tributary {

bool KeptView::lies_on(const std::vector<ShardJob>& parts) const {
  const auto here = [&](const ShardJob& part) { return std::ranges::find(lanes, part.lane) != lanes.end(); };
  return parts.size() == lanes.size() && std::ranges::all_of(parts, here);
}

std::optional<Round> KeptView::unsaved() const {
  const bool told = parking == 0;
  const std::uint64_t least = (told ? min_version : status.min_version()).value;
  const std::uint64_t most = (told ? max_version : status.max_version()).value;
  // A chunk of round r + 1 was made after round r, on a server that is being brought up to there, too.
  const Round round(std::max(least, std::max<std::uint64_t>(most, 1) - 1));
  if (!all || never_began() || round <= status.snapshot_committed) return std::nullopt;
  return round;
}

KeptView& KeptViews::begin(const ServerJob& job, std::uint64_t now_ms) {
  KeptView state;
  state.status = job.status;
  state.status.snapshot_pending.reset();  // given up, or the view's own
  state.lanes = job.lanes;
  state.parking = job.lanes.size();
  state.until_ms = now_ms + kKeepMs;
  return views_[job.view().job] = std::move(state);
}

void KeptViews::park(const KeptView& state) const {
  for (const LaneIndex lane : state.lanes) lanes_[lane.value]->park(state.view().job, state.view().view);
}

void KeptViews::keep(const ServerJob& job, std::uint64_t now_ms) {
  KeptView& state = begin(job, now_ms);
  state.load = job.load;
  park(state);
}

void KeptViews::keep_load(const ServerJob& job, std::uint64_t now_ms) {
  KeptView& state = begin(job, now_ms);
  state.asked = false;
  state.load = job.load;
  if (state.load->there) park(state);
}

bool KeptViews::keep_last(const ServerJob& job, Round round, std::uint64_t now_ms) {
  if (!job.plan().has_rounds() || job.lanes.empty()) return false;
  KeptView& state = begin(job, now_ms);
  state.asked = false;
  state.last = round;
  return true;
}

const KeptView* KeptViews::lane_parked(JobId job, ViewId view, bool any, Version min, Version max) {
  KeptView* state = find(job);
  if (!state || state->view().view != view || state->parking == 0) return nullptr;
  state->all = state->all && any;
  state->min_version = std::min(state->min_version, min);
  state->max_version = std::max(state->max_version, max);
  return --state->parking == 0 ? state : nullptr;
}

std::optional<ShardKept> KeptViews::ask(JobId job, ViewId view, std::uint64_t now_ms) {
  KeptView* state = find(job);
  if (state) state->until_ms = now_ms + kKeepMs;
  if (!state || state->never_began()) return ShardKept{job, view, false, {}, {}};
  state->asked = true;
  return state->parking == 0 ? std::optional(state->report()) : std::nullopt;
}

std::optional<ShardKept> KeptViews::committed(JobId job, Round round) {
  KeptView* state = find(job);
  if (!state) return std::nullopt;
  state->status.snapshot_committed = round;
  if (state->last != round) return std::nullopt;
  const bool owed = state->parking != 0 && state->asked;
  const ShardKept reply{job, state->view().view, false, {}, {}};
  drop(job);
  return owed ? std::optional(reply) : std::nullopt;
}

void KeptViews::describe(ServerHello& hello) {
  for (auto& [job, state] : views_) {
    if (state.never_began()) continue;
    const bool pending = state.parking != 0;
    state.asked = state.asked || pending;  // it will wait for the result
    if (pending || state.all) hello.kept.push_back({job, state.min_version, state.max_version, pending});
  }
}

KeptView* KeptViews::find(JobId job) {
  const auto found = views_.find(job);
  return found != views_.end() ? &found->second : nullptr;
}

std::vector<JobId> KeptViews::before(const ViewPlan& view) const {
  std::vector<JobId> ids;
  for (const auto& [id, state] : views_) {
    if (id != view.job && state.view().name() == view.name()) ids.push_back(id);
  }
  return ids;
}

bool KeptViews::any() const {
  return std::ranges::any_of(views_, [](const auto& entry) { return !entry.second.never_began(); });
}

// Nodes of a view that began here may have yet to send their residuals, which are those of another round.
std::shared_ptr<SnapshotLoad> KeptViews::load_for(const ViewPlan& view) const {
  const auto found = views_.find(view.job);
  if (found == views_.end() || !found->second.load || !found->second.load->serves(view)) return nullptr;
  const KeptView& state = found->second;
  const bool untouched = state.parking == 0 && state.all && state.at(view.start) && !view.plan->push->keeps_residual();
  return state.never_began() || untouched ? state.load : nullptr;
}

std::optional<ServerJob> KeptViews::take_back(JobId job, ViewId view, Round round) {
  KeptView* state = find(job);
  if (!state || state->view().view != view || !state->whole() || !state->at(round)) return std::nullopt;
  ServerJob back;
  back.status = std::move(state->status);
  back.lanes = std::move(state->lanes);
  back.load = std::move(state->load);
  back.kept = true;
  views_.erase(job);
  return back;
}

void KeptViews::drop(JobId job) {
  const auto found = views_.find(job);
  if (found == views_.end()) return;
  const KeptView state = std::move(found->second);
  views_.erase(found);
  const bool reading = state.load && !state.load->there;
  if (state.load) state.load->wanted = false;
  for (const LaneIndex index : state.lanes) {
    LaneCommands& lane = *lanes_[index.value];
    reading ? lane.stop_job(job, state.load->at, false, Round(0), false) : lane.drop_parked(job);
  }
}

}  // namespace tributary

// Opens jobs: gives the lanes their parts, and drops old snapshots before a view begins. (The load of the state that the
// view begins with goes on in control_jobs_load.cc.)
#include <utility>

#include "server/control_jobs.h"
#include "server/job_memory.h"

namespace tributary {

void ControlJobs::on(const OpenJob& m) {
  if (const ServerJob* job = find(m.job, m.view)) {  // repeated, because the answer was lost, or has yet to come
    if (job->status.phase == "running") output_.send(ShardReady{m.job, m.view, true, {}, {}});
    return;
  }
  if (const auto before = jobs_.find(m.job); before != jobs_.end()) {
    if (before->second.ending && kept_.contains(m.job)) {
      jobs_.erase(before);  // what lanes keep was being written
    } else if (!keep_load(m.job, "the job opens again")) {
      drop(m.job, "the job opens again");
    }
  }
  const KeptView* kept = kept_.find(m.job);
  if (m.kept && !(kept && kept->whole())) {
    return opened(
        m.job, m.view,
        fail(ErrorCode::kUnavailable, "server " + std::to_string(config_.index) + " does not have the state of job " +
                                          std::to_string(m.job.value) + " in memory any more; attach again"));
  }
  Result<ServerJob> laid = lay_out(m, own_, lanes_.size(), store_);
  // The chunks have come from other servers, under another id: what is kept of that one is not needed any more.
  for (const JobId other : laid ? kept_.before(laid->view()) : std::vector<JobId>()) unpark(other);
  const Status fits = laid ? check_memory(laid->status, jobs_, kept_, config_, store_) : tl::unexpected(laid.error());
  if (fits && m.resume && !m.kept) laid->load = kept_.load_for(laid->view());
  if (!m.kept && !(fits && laid->load)) unpark(m.job);
  if (!fits) return opened(m.job, m.view, fits);
  ServerJob& job = *laid;
  if (m.kept && !kept->lies_on(job.parts)) {
    return opened(
        m.job, m.view,
        fail(ErrorCode::kTopology, "the state that server " + std::to_string(config_.index) + " kept of job '" +
                                       job.view().name() + "' lies on other lanes than the view puts its chunks on"));
  }
  if (m.kept) kept_.taken_up(m.job);
  for (ShardJob& part : job.parts) {
    auto gauges = std::make_shared<LaneJobGauges>(part.plan().has_clocks() ? part.view->nodes : 0);
    job.lanes.push_back(part.lane);
    job.status.gauges.push_back(gauges);
    if (job.load) continue;  // the part goes with it
    LaneCommands& lane = *lanes_[part.lane.value];
    m.kept ? lane.reopen(std::move(part), std::move(gauges)) : lane.open(std::move(part), std::move(gauges));
  }
  if (!job.load) job.parts.clear();
  job.opening = job.lanes.size();
  // Forget unwritten snapshots of an earlier training with that name, which is gone.
  std::erase_if(not_saved_,
                [&](const auto& lost) { return lost.first != m.job && lost.second.job == job.view().name(); });
  ServerJob& placed = jobs_.emplace(m.job, std::move(job)).first->second;
  output_.changed();
  if (copies_.saving(m.job)) {
    ++placed.opening;
    copies_.after(m.job, [this, id = m.job, view = m.view] { part_opened(id, view, {}); });
  }
  if (end_snapshots(placed)) {
    forget_snapshots(placed);
  } else {
    placed.clearing = true;
    ++placed.opening;
  }
  if (placed.load) {
    take_up(m.job);
  } else if (m.resume && !m.kept && !placed.lanes.empty()) {
    placed.load = std::make_shared<SnapshotLoad>(placed.status.view, output_.now_ms());
    loads_.begin(placed.load, placed.snapshot(m.resume_round, own_), m.copy);
  } else {
    for (const LaneIndex lane : placed.lanes) lanes_[lane.value]->opened(m.job, m.view, false);
  }
  if (placed.opening == 0) return opened(m.job, m.view, Status(placed.opened));  // no lane has a part of it
}

// Drops snapshots beyond the round that the view begins at: not every server completed them. They belong to a view that
// is over, perhaps with another configuration or topology, and must not be taken for parts of this view's snapshots. So
// no view opens here before all of them are gone, in the store and on their way to it. A fresh job begins before any
// round.
void ControlJobs::forget_snapshots(ServerJob& job) {
  const JobId id = job.view().job;
  const Round first = job.first_beyond();
  if (!stored_.any_from(id, first)) return;
  ++job.opening;
  stored_.drop(id, first, Round(~0ull), [this, id, view = job.view().view](const Status& dropped) {
    output_.hello();  // reports the remaining snapshots to the coordinator
    const ServerJob* opening = find(id, view);
    if (!opening) return;
    if (dropped) return part_opened(id, view, {});
    part_opened(id, view,
                fail(ErrorCode::kUnavailable,
                     "server " + std::to_string(config_.index) + " has snapshots of an earlier view of job '" +
                         opening->view().name() + "' that must go before the next one opens, and cannot drop them: " +
                         dropped.error().message + "; then attach again"));
  });
}

// False: some of an earlier view's are still being written, or copied from another server.
bool ControlJobs::end_snapshots(const ServerJob& job) {
  const JobId id = job.view().job;
  const bool copying = fetches_.give_up(id, job.first_beyond());
  const bool writing = writes_.abandon_all(id, "the job's next view opens");
  return !copying && !writing;
}

// Snapshots of earlier views have ended: then they can go.
void ControlJobs::cleared(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || !found->second.clearing) return;
  if (writes_.any(id) || fetches_.ending(id)) return;
  ServerJob& job = found->second;
  job.clearing = false;
  forget_snapshots(job);
  part_opened(id, job.view().view, {});
}

void ControlJobs::opened(JobId id, ViewId view, const Status& status) {
  ShardReady ready;
  ready.job = id;
  ready.view = view;
  ready.ok = status.has_value();
  if (status) {
    ServerJob& job = jobs_.at(id);
    job.status.phase = "running";
    if (job.load) job.load->began = true;
    logger_->info("job '{}' view {} is open: {} chunks on {} lanes, {}", job.view().name(), view.value,
                  job.status.chunks, job.lanes.size(), job.status.resumed ? "resumed" : "fresh");
  } else {
    ready.code = status.error().code;
    ready.message = status.error().message;
    const ServerJob* job = find(id, view);  // else it was refused before it was anything
    logger_->error("job '{}' view {} cannot open: {}", job ? job->view().name() : std::to_string(id.value), view.value,
                   ready.message);
    // The next view can also use the state that lanes kept of the last one, or have loaded.
    const std::string why = "it could not open";
    if (job && !keep_load(id, why)) job->kept ? park(id, why) : drop(id, why);
  }
  output_.send(std::move(ready));
}

// One thing has ended that the opening waits for.
void ControlJobs::part_opened(JobId id, ViewId view, const Status& status) {
  ServerJob* job = find(id, view);
  if (!job || job->opening == 0) return;
  if (job->opened && !status) job->opened = status;
  if (--job->opening == 0) opened(id, view, Status(job->opened));
}

}  // namespace tributary

// Loading the state that a view begins with. A load belongs to the snapshot that it reads: a view that is cut before it
// began leaves it to the next one that begins there.
#include <algorithm>

#include "common/config/job_json.h"
#include "server/control_jobs.h"

namespace tributary {
namespace {

// Has a lane the same in memory after it has loaded either?
bool same_load(const ViewPlan& a, const ViewPlan& b) {
  return a.start == b.start && a.nodes == b.nodes && a.layout->hash() == b.layout->hash() &&
         std::ranges::equal(a.layout->owners(), b.layout->owners()) &&
         a.model_ranks.by_rank() == b.model_ranks.by_rank() &&
         to_canonical_json(a.plan->config) == to_canonical_json(b.plan->config);
}

}  // namespace

// copy: where a copy of this server's part of the snapshot can be read, if anywhere: the store may lack the part, or have
// a damaged one. REQUIRES: some lane has a part of it.
void ControlJobs::load(Job& job, const ServerEntry& copy) {
  const ViewPlan& view = job.view();
  job.load = std::make_shared<Load>(job.status.view, output_.now_ms());
  const SnapshotInfo what = info(job, view.start);
  if (!copy.copy_endpoint.empty() && !stored(view.job, view.start)) return fill(job.load, what, copy);
  orders_->load(what, restores(job.load), [this, load = job.load, what, copy](const Status& status) {
    const bool damaged = !status && status.error().code == ErrorCode::kStore;
    if (!damaged || copy.copy_endpoint.empty() || !load->wanted) return loaded(load, status);
    logger_->error("{}", status.error().message);
    fill(load, what, copy);
  });
}

void ControlJobs::fill(const std::shared_ptr<Load>& load, const SnapshotInfo& what, const ServerEntry& copy) {
  const CopySnapshot order{what.job, what.round, what.shard, copy, load->view->view, false};
  fetches_.fill(order, [this, load, what](const Status& there) {
    if (!load->wanted) return loaded(load, fail(ErrorCode::kStopped, "nobody wants it any more"));
    if (there) return orders_->load(what, restores(load), [this, load](const Status& all) { loaded(load, all); });
    // Soon it may be there.
    loaded(load, fail(ErrorCode::kUnavailable, "server " + std::to_string(config_.index) +
                                                   "'s store lacks its part of round " +
                                                   std::to_string(what.round.value) + " of job '" + what.job_name +
                                                   "', and a copy cannot be had: " + there.error().message));
  });
}

// On the store's thread. Chunks that a lane has are not given to it again.
EachChunk ControlJobs::restores(const std::shared_ptr<Load>& load) const {
  const std::vector<bool> none(load->view->layout->chunks(), false);
  if (load->given.empty()) load->given = none;
  return [load, seen = none, lanes = lanes_, shard = ShardIndex(config_.index)](ChunkIndex chunk,
                                                                                ChunkState state) mutable -> Status {
    const ViewPlan& view = *load->view;
    if (!load->wanted) return fail(ErrorCode::kStopped, "nobody wants it any more");
    const std::uint32_t index = chunk.value;
    const bool ours = index < seen.size() && view.layout->owner(chunk).shard == shard;
    // With clocks the version counts pushes; the lane checks the clocks.
    const bool other_round = !view.plan->has_clocks() && state.version.value != view.start.value;
    if (!ours || seen[index] || other_round) {
      return fail(ErrorCode::kStore, "the snapshot of round " + std::to_string(view.start.value) + " of job '" +
                                         view.name() + "' has chunk " + std::to_string(index) + " at version " +
                                         std::to_string(state.version.value) +
                                         (!ours         ? ", which does not belong to this server"
                                          : seen[index] ? " twice"
                                                        : ", which is another round") +
                                         "; start the server with the store it had");
    }
    seen[index] = true;
    if (load->given[index]) return {};
    load->given[index] = true;
    const std::uint64_t bytes = state.bytes();
    lanes[view.layout->owner(chunk).lane.value]->restore(view.job, view.view, chunk, std::move(state));
    load->bytes += bytes;
    return {};
  };
}

void ControlJobs::loaded(const std::shared_ptr<Load>& load, const Status& status) {
  const JobId id = load->view->job;
  load->there = status.has_value();
  if (status) {
    logger_->info("job '{}' loaded round {}: {} MB in {} ms", load->view->name(), load->view->start.value,
                  load->bytes / 1'000'000, output_.now_ms() - load->began_ms);
  }
  if (Job* job = find(id, load->at); job && job->load == load) {
    if (!status) job->load.reset();
    if (job->opened && !status) job->opened = status;
    for (const LaneIndex lane : job->lanes) lanes_[lane.value]->opened(id, load->at, job->opened.has_value());
    return;
  }
  const auto kept = parked_.find(id);
  if (kept == parked_.end() || kept->second.load != load) return;  // it was given up
  if (status) {
    for (const LaneIndex lane : kept->second.lanes) lanes_[lane.value]->park(id, load->at);
    return;
  }
  const Job* waits = that_waits_for(kept->second);
  unpark(id);
  if (waits) opened(id, waits->view().view, status);
}

// Finds a load of an earlier view that this view can begin with; null: there is none. Nodes of a view that began here
// may have yet to send their residuals, which are those of another round.
std::shared_ptr<ControlJobs::Load> ControlJobs::load_for(const ViewPlan& view) const {
  const auto found = parked_.find(view.job);
  if (found == parked_.end() || !found->second.load || !same_load(*found->second.load->view, view)) return nullptr;
  const Parked& kept = found->second;
  const Version start(view.start.value);
  const bool untouched = kept.parking == 0 && kept.all && kept.min_version == start && kept.max_version == start &&
                         !view.plan->push->keeps_residual();
  return kept.never_began() || untouched ? kept.load : nullptr;
}

// The view is over before it began. False: nothing is, or was, loaded for it that another view could begin with.
bool ControlJobs::keep_load(JobId id, const std::string& why) {
  const Job& job = jobs_.at(id);
  const std::shared_ptr<Load> load = job.load;
  if (!load || load->began || !load->wanted || !job.plan().has_rounds()) return false;
  const ViewId view = job.view().view;
  if (load->at == view) {  // else it is kept already
    Parked& state = begin_parking(job);
    state.asked = false;
    state.load = load;
    if (load->there) {
      for (const LaneIndex lane : state.lanes) lanes_[lane.value]->park(id, view);
    }
  }
  logger_->warn("job '{}' view {} is over before it began: {}; {}", job.view().name(), view.value, why,
                load->there ? "what was loaded stays in memory" : "its state is loaded all the same");
  jobs_.erase(id);
  return true;
}

// Returns the view that opens and continues with it.
ControlJobs::Job* ControlJobs::that_waits_for(const Parked& state) {
  if (!state.load) return nullptr;
  const auto job = jobs_.find(state.load->view->job);
  return job != jobs_.end() && job->second.load == state.load ? &job->second : nullptr;
}

// All that an earlier view had loaded is there, and another view waits for it?
void ControlJobs::take_up(JobId id) {
  const auto kept = parked_.find(id);
  if (kept == parked_.end() || !kept->second.load->there || kept->second.parking != 0) return;
  Job* job = that_waits_for(kept->second);
  if (!kept->second.all) {
    unpark(id);
    if (!job) return;
    return opened(id, job->view().view,
                  fail(ErrorCode::kUnavailable, "server " + std::to_string(config_.index) +
                                                    " could not keep what it had loaded of job '" + job->view().name() +
                                                    "'; attach again"));
  }
  if (!job) return;
  parked_.erase(kept);
  const ViewId view = job->view().view;
  job->load->at = view;
  job->load->began = false;
  for (std::size_t i = 0; i < job->parts.size(); ++i) {
    LaneCommands& lane = *lanes_[job->parts[i].lane.value];
    lane.reopen(std::move(job->parts[i]), job->status.gauges[i]);
    lane.opened(id, view, true);
  }
  job->parts.clear();
}

}  // namespace tributary

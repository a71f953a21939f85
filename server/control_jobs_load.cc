// The way of a load after it was ordered (server/snapshot_loads.h): to the view that asked for it, or, where that was cut
// before it began, to the next one that begins there.
#include "server/control_jobs.h"

namespace tributary {

void ControlJobs::loaded(const std::shared_ptr<SnapshotLoad>& load, const Status& status) {
  const JobId id = load->view->job;
  load->there = status.has_value();
  if (status) {
    logger_->info("job '{}' loaded round {}: {} MB in {} ms", load->view->name(), load->view->start.value,
                  load->bytes / 1'000'000, output_.now_ms() - load->began_ms);
  }
  if (ServerJob* job = find(id, load->at); job && job->load == load) {
    if (!status) job->load.reset();
    if (job->opened && !status) job->opened = status;
    for (const LaneIndex lane : job->lanes) lanes_[lane.value]->opened(id, load->at, job->opened.has_value());
    return;
  }
  const KeptView* kept = kept_.find(id);
  if (!kept || kept->load != load) return;  // it was given up
  if (status) return kept_.park(*kept);
  const ServerJob* waits = that_waits_for(*kept);
  unpark(id);
  if (waits) opened(id, waits->view().view, status);
}

// The view is over before it began. False: nothing is, or was, loaded for it that another view could begin with.
bool ControlJobs::keep_load(JobId id, const std::string& why) {
  const ServerJob& job = jobs_.at(id);
  const std::shared_ptr<SnapshotLoad> load = job.load;
  if (!load || load->began || !load->wanted || !job.plan().has_rounds()) return false;
  const ViewId view = job.view().view;
  if (load->at == view) kept_.keep_load(job, output_.now_ms());  // else it is kept already
  logger_->warn("job '{}' view {} is over before it began: {}; {}", job.view().name(), view.value, why,
                load->there ? "what was loaded stays in memory" : "its state is loaded all the same");
  jobs_.erase(id);
  return true;
}

// Returns the view that opens and continues with it.
ServerJob* ControlJobs::that_waits_for(const KeptView& state) {
  if (!state.load) return nullptr;
  const auto job = jobs_.find(state.load->view->job);
  return job != jobs_.end() && job->second.load == state.load ? &job->second : nullptr;
}

// All that an earlier view had loaded is there, and another view waits for it?
void ControlJobs::take_up(JobId id) {
  const KeptView* kept = kept_.find(id);
  if (!kept || !kept->load->there || kept->parking != 0) return;
  ServerJob* job = that_waits_for(*kept);
  if (!kept->all) {
    unpark(id);
    if (!job) return;
    return opened(id, job->view().view,
                  fail(ErrorCode::kUnavailable, "server " + std::to_string(config_.index) +
                                                    " could not keep what it had loaded of job '" + job->view().name() +
                                                    "'; attach again"));
  }
  if (!job) return;
  kept_.taken_up(id);
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

// State that goes from memory into a checkpoint, because a store is broken: what lanes capture at a round to come, or keep
// of a view that is over.
#include <utility>

#include "server/control_jobs.h"

namespace tributary {

void ControlJobs::on(const WriteCheckpoint& m) {
  ServerJob* job = find(m.job, m.view);
  if (job && job->status.phase == "running") return capture(*job, m.round, m);
  job = take_back(m.job, m.view, m.round);
  if (!job) {
    return output_.send(CheckpointDone{m.operation, false, ErrorCode::kStopped,
                                       "server " + std::to_string(config_.index) + " has not all of round " +
                                           std::to_string(m.round.value) + " in memory now"});
  }
  // Lanes keep it all the same: a next view may begin with it.
  job->ending = true;
  job->status.phase = "stopping";
  expect_snapshot(*job, m.round, false, m);
  stop_lanes(*job, true, m.round, kept_.keep_last(*job, m.round, output_.now_ms()));
}

void ControlJobs::give_up(const DropCheckpoint& m) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const auto entry = at++;
    const ServerJob& job = entry->second;
    if (!job.checkpoint || (entry->first != m.job && job.checkpoint->directory != m.directory)) continue;
    writes_.abandon(entry->first, job.checkpoint->round, "the checkpoint is given up");
    if (job.ending) jobs_.erase(entry);  // lanes keep the state
  }
}

void ControlJobs::checkpoint_written(const WriteCheckpoint& order, const CheckpointDone& done) {
  output_.send(done);
  if (write_ended(order.job, order.view, order.round)) return;
  ServerJob* job = find(order.job, order.view);
  if (!job || !job->checkpoint || job->checkpoint->operation != order.operation) return;
  job->checkpoint.reset();
  job->status.snapshot_pending.reset();
  if (job->ending) finish(order.job);
}

}  // namespace tributary

// QueuedLane: the commands of a lane, carried out in order by the lane's owner.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "server/lane/lane_jobs.h"

namespace tributary {

class QueuedLane : public LaneCommands {
 public:
  void open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override {
    post([job = std::move(job), gauges = std::move(gauges)](LaneJobs& jobs) { jobs.open(job, gauges); });
  }
  void reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override {
    post([job = std::move(job), gauges = std::move(gauges)](LaneJobs& jobs) { jobs.reopen(job, gauges); });
  }
  void park(JobId job, ViewId view) override {
    post([=](LaneJobs& jobs) { jobs.park(job, view); });
  }
  void drop_parked(JobId job) override {
    post([=](LaneJobs& jobs) { jobs.drop_parked(job); });
  }
  void opened(JobId job, ViewId view, bool restored) override {
    post([=](LaneJobs& jobs) { jobs.opened(job, view, restored); });
  }
  void prepare_snapshot(JobId job, ViewId view) override {
    post([=](LaneJobs& jobs) { jobs.prepare_snapshot(job, view); });
  }
  void snapshot_at(JobId job, ViewId view, Round round) override {
    post([=](LaneJobs& jobs) { jobs.snapshot_at(job, view, round); });
  }
  void snapshot_written(JobId job) override {
    post([=](LaneJobs& jobs) { jobs.snapshot_written(job); });
  }
  void decide(const RoundDecision& decision) override {
    post([=](LaneJobs& jobs) { jobs.decide(decision); });
  }
  void stop_job(JobId job, ViewId view, bool keep, Round round, bool park) override {
    post([=](LaneJobs& jobs) { jobs.stop_job(job, view, keep, round, park); });
  }
  void await_longer(JobId job, ViewId view) override {
    post([=](LaneJobs& jobs) { jobs.await_longer(job, view); });
  }
  void trace(JobId job, ViewId view, std::shared_ptr<TraceBuffer> buffer) override {
    post([=](LaneJobs& jobs) { jobs.trace(job, view, buffer); });
  }

 protected:
  virtual void post(std::function<void(LaneJobs&)> command) = 0;
};

}  // namespace tributary

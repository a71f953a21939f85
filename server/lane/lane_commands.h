// The control thread's commands to a lane, and a lane's reports to the control thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/wire/trace_buffer.h"
#include "server/lane/lane_gauges.h"
#include "server/shard/shard_core.h"

namespace tributary {

// Called on the lane's thread: must not block.
class LaneListener {
 public:
  virtual ~LaneListener() = default;
  virtual void lane_opened(LaneIndex lane, JobId job, ViewId view, const Status& status) = 0;
  virtual void lane_snapshot(LaneIndex lane, JobId job, ViewId view, Round round, bool started) = 0;
  // any: the lane keeps the state of the view that is over; its chunks are at versions from min to max.
  virtual void lane_parked(LaneIndex lane, JobId job, ViewId view, bool any, Version min, Version max) = 0;
  // kept: every chunk was captured at `round` (false as well if it was not asked for).
  virtual void lane_stopped(LaneIndex lane, JobId job, ViewId view, Round round, bool kept) = 0;
  virtual void lane_captured(ChunkSnapshot snapshot) = 0;
  // Jobs with a gate: ShardOutput::facts() and, when the job opens, ShardCore::decided().
  virtual void lane_facts(LaneIndex /*lane*/, RoundFacts /*facts*/) {}
};

// Carried out in order.
class LaneCommands {
 public:
  virtual ~LaneCommands() = default;
  // An older view of the job is dropped.
  virtual void open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) = 0;
  // Instead of open() and its restores: continues from the state that park() kept.
  virtual void reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) = 0;
  // The view is over; its state is kept until the job is opened again or dropped. Replied with lane_parked().
  virtual void park(JobId job, ViewId view) = 0;
  virtual void drop_parked(JobId job) = 0;
  // One chunk of this view of the job; of another one it is dropped. Any thread. Blocks while Lane::kMaxRestoreBytes
  // wait. REQUIRES: owned by this lane, each once.
  virtual void restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState state) = 0;
  // Ends open() and its restores; replied with lane_opened(). With `restored`, every chunk must have been.
  virtual void opened(JobId job, ViewId view, bool restored) = 0;
  // Gets memory for the copy-on-write of the next snapshot. The gauges show when it is there.
  virtual void prepare_snapshot(JobId job, ViewId view) = 0;
  virtual void snapshot_at(JobId job, ViewId view, Round round) = 0;
  // Releases the memory for the snapshot's copy-on-write, after a while.
  virtual void snapshot_written(JobId job) = 0;
  virtual void decide(const RoundDecision& decision) = 0;
  // keep: captures every chunk at this round. Replied with lane_stopped(), even if the lane does not have the job. With
  // encodings that keep residuals the reply waits for them, until no node has sent anything for stop_timeout_ms.
  // park: the state also stays in memory, as with park(); lane_parked() follows.
  virtual void stop_job(JobId job, ViewId view, bool keep, Round round, bool park) = 0;
  // Nodes of this job make progress elsewhere: a stop that waits for residuals waits the full time again.
  virtual void await_longer(JobId job, ViewId view) = 0;
  // Records the lane's work for this view of the job into `buffer` from now on; null: records nothing more.
  virtual void trace(JobId /*job*/, ViewId /*view*/, std::shared_ptr<TraceBuffer> /*buffer*/) {}
};

}  // namespace tributary

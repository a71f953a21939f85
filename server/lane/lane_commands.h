// What the control thread tells a lane to do, and what a lane tells the control thread.
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
  // Of a job with a gate: ShardOutput::facts(), and when it opens ShardCore::decided().
  virtual void lane_facts(LaneIndex /*lane*/, RoundFacts /*facts*/) {}
};

// Carried out in order.
class LaneCommands {
 public:
  virtual ~LaneCommands() = default;
  // An older view of the job is dropped.
  virtual void open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) = 0;
  // Instead of open() and its restores: goes on with what park() kept.
  virtual void reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) = 0;
  // The view is over; its state is kept until the job is opened again or dropped. Replied with lane_parked().
  virtual void park(JobId job, ViewId view) = 0;
  virtual void drop_parked(JobId job) = 0;
  // One chunk of this view of the job; of another one it is dropped. Any thread. Blocks while Lane::kMaxRestoreBytes
  // wait. REQUIRES: owned by this lane, each once.
  virtual void restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState state) = 0;
  // Ends open() and its restores; replied with lane_opened(). With `restored`, every chunk must have been.
  virtual void opened(JobId job, ViewId view, bool restored) = 0;
  // Gets memory for the copy-on-write of the next snapshot, and says so in the gauges.
  virtual void prepare_snapshot(JobId job, ViewId view) = 0;
  virtual void snapshot_at(JobId job, ViewId view, Round round) = 0;
  // What copy-on-write needed for it can go, after a while.
  virtual void snapshot_written(JobId job) = 0;
  virtual void decide(const RoundDecision& decision) = 0;
  // keep: captures every chunk at this round. Replied with lane_stopped(), also if the lane does not have the job. With
  // encodings that keep residuals the reply waits for them, until no node has said a word for stop_timeout_ms.
  // park: the state stays besides, as with park(), replied with lane_parked() after that.
  virtual void stop_job(JobId job, ViewId view, bool keep, Round round, bool park) = 0;
  // Nodes of this job get on, if not here: a stop that waits for residuals waits anew.
  virtual void await_longer(JobId job, ViewId view) = 0;
  // From now on the lane records into `buffer` what it does for this view of the job; null: no more of any.
  virtual void trace(JobId /*job*/, ViewId /*view*/, std::shared_ptr<TraceBuffer> /*buffer*/) {}
};

}  // namespace tributary

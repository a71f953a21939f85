// LaneJobs: all of a server lane but its thread and its sockets: the jobs that are open, with their pools and cores;
// the state of views that are over, for the next view; stops that wait for residuals; memory on its way back to the
// system. Pure: the lane (server/lane/lane.h) and the simulator drive this class. Thread rule: the lane's.
//
// A message that cannot be accepted is answered with an ErrorReply, counted, and reported to the output. No message
// stops the lane.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/patience.h"
#include "common/base/result.h"
#include "common/system/buffer_pool.h"
#include "common/wire/local_link.h"
#include "common/wire/messages.h"
#include "common/wire/payload.h"
#include "server/lane/lane_commands.h"
#include "server/lane/lane_trace.h"
#include "server/lane/told_places.h"
#include "server/shard/shard_core.h"

namespace tributary {

struct LaneJobsOptions {
  ShardIndex shard;
  LaneIndex lane;
  // For so long after a snapshot is committed the next one would find its memory; then it goes back to the system.
  std::uint64_t idle_memory_ms = 30'000;
  // A stop waits for the residuals of nodes that leave. It is given up, and the last committed snapshot stands, when
  // nothing has come from them for so long, and no await_longer() has reported progress elsewhere: a node that still
  // takes answers of another server sends nothing here.
  std::uint64_t stop_timeout_ms = 30'000;
};

// Gets memory for a snapshot's copy-on-write before the first step needs it. The pool outlives the preparation.
class PoolPreparing {
 public:
  virtual ~PoolPreparing() = default;
  // Begins to get `blocks` blocks beyond those in use, and gives up an earlier preparation. done: called once, from any
  // thread or in this call, when the memory is there or no more can be had; not for one that is given up.
  virtual void begin(BufferPool& pool, std::size_t blocks, std::function<void()> done) = 0;
  virtual void end() = 0;
};

class LaneOutput {
 public:
  virtual ~LaneOutput() = default;
  virtual std::uint64_t now_ms() const = 0;
  virtual std::uint64_t now_ns() const = 0;  // the same clock
  // values: empty, or the payload behind the header; with place.bytes != 0 the header names the place instead.
  virtual void send(PeerId to, const DataMessage& message, const BufferRef& values, const PayloadPlace& place) = 0;
  virtual std::unique_ptr<PoolPreparing> preparing() = 0;
  // A line for the log; peers can cause as many of the first as they like.
  virtual void refused(const std::string& line) = 0;
  virtual void warn(const std::string& line) = 0;
};

class LaneJobs final : public LaneCommands, private ShardOutput {
 public:
  static constexpr std::uint64_t kPublishMs = 100;
  // Given back to the system in one turn: some hundred microseconds a MiB.
  static constexpr std::size_t kTrimBytes = 4u << 20;

  LaneJobs(LaneJobsOptions options, LaneOutput& output, LaneListener& listener);

  // LaneCommands, carried out at once.
  void open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override;
  void reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override;
  void park(JobId job, ViewId view) override;
  void drop_parked(JobId job) override;
  void restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState state) override;
  void opened(JobId job, ViewId view, bool restored) override;
  void prepare_snapshot(JobId job, ViewId view) override;
  void snapshot_at(JobId job, ViewId view, Round round) override;
  void snapshot_written(JobId job) override;
  void decide(const RoundDecision& decision) override;
  void stop_job(JobId job, ViewId view, bool keep, Round round, bool park) override;
  void await_longer(JobId job, ViewId view) override;
  void trace(JobId job, ViewId view, std::shared_ptr<TraceBuffer> buffer) override;

  // The frames and the payload of a message.
  struct Received {
    int frames = 0;           // header and payload; also those are counted that none of ours has
    PayloadPlace place;       // in memory, if the second frame is missing
    Result<Payload> payload;  // from the second frame or at the place, not copied; an error: the place is wrong
  };
  void receive(PeerId from, const DataMessage& message, Received received);
  void refuse(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message);

  // Does the duties between messages and commands. Returns in how many milliseconds to call it again at the latest.
  std::uint64_t turn();
  // Something happened that the counters do not show yet.
  void changed() { dirty_ = true; }

  // A job's memory that this lane shares with a worker on its machine. kUnknownJob: the lane does not have the job in
  // that view and with that node.
  struct Shared {
    std::shared_ptr<BufferPool> pool;
    std::size_t chunks = 0;
  };
  Result<Shared> shared(const LinkRequest& request) const;
  ToldPlaces& told() { return told_; }

  // Null: not open here.
  const ShardCore* core(JobId job) const;
  const ShardCore* parked(JobId job) const;
  LaneCounters& counters() { return counters_; }
  const LaneCounters& counters() const { return counters_; }

  // Ends all jobs: the cores give their buffers back. The caller keeps the pools whose buffers are lent to others.
  std::vector<std::shared_ptr<BufferPool>> end();

 private:
  struct Job {
    std::shared_ptr<BufferPool> pool;  // declared first: the core's buffers go back to it
    std::unique_ptr<PoolPreparing> preparing;
    std::unique_ptr<ShardCore> core;
    std::shared_ptr<LaneJobGauges> gauges;
    Status restored;
    std::size_t steady_blocks = 0;  // of the pool, without snapshots
    std::uint64_t trim_at_ms = 0;   // when memory for copy-on-write goes back, some of it every turn; 0: it stays
    struct Stop {
      Round round;
      bool park = false;
      Patience patience;
    };
    std::optional<Stop> stop;  // waits for residuals, while `said` grows
    std::uint64_t said = 0;    // messages since the view began
  };
  using Jobs = std::unordered_map<JobId, Job>;

  Job* find(JobId job, ViewId view);
  template <class M>
  void dispatch(PeerId from, const M& message, Received& received);
  void refuse_malformed(PeerId from, const ChunkKey& key, Round round, Error error);
  void set_aside(JobId job, ViewId view);
  bool finish_stops(std::uint64_t now_ms);  // true if some wait
  bool trim_some(std::uint64_t now_ms);     // true if there is more to do at once
  void retire(Job job);
  void retire(Jobs& jobs, JobId job);
  void publish(std::uint64_t now_ms);

  // ShardOutput
  void send(PeerId to, const DataMessage& message, const BufferRef& values) override;
  void captured(ChunkSnapshot snapshot) override;
  void facts(const RoundFacts& facts) override;

  const LaneJobsOptions options_;
  LaneOutput& output_;
  LaneListener& listener_;
  ToldPlaces told_;
  std::unique_ptr<ServerLaneTrace> trace_;  // null: nothing is traced
  Jobs jobs_;
  Jobs parked_;  // state of views that are over
  // Pools of jobs that are over: sockets, the snapshot writer or workers on this machine may still refer to blocks.
  std::vector<std::shared_ptr<BufferPool>> retired_;
  ShardStats closed_;  // totals of jobs that are over
  LaneCounters counters_;
  bool dirty_ = false;
  std::uint64_t next_publish_ms_ = 0;
};

}  // namespace tributary

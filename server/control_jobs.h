// ControlJobs: a server's jobs: opens and closes them on the lanes, loads their state, has snapshots taken. It has no
// threads, sockets or clocks of its own: messages and events come in, actions go out through the ports. The
// control thread (control.h) and the simulator (tests/sim) drive the same class.
//
//   OpenJob         lay the job out (server/server_job.h), give every lane its part, have the resume round loaded by the store's thread
//                   -> ShardReady, when all is there
//   PrepareSnapshot the lanes get memory for it; heartbeats report when they have it
//   SnapshotAt      the snapshotter expects it, then the lanes capture -> SnapshotDone when it is durable here
//   SnapshotCommit  older snapshots go
//   CopySnapshot    a part of a snapshot is read from another server into the store (server/copies/snapshot_fetches.h)
//                   -> SnapshotCopied, when it is durable
//   JobRecordCopy   a copy of the record is saved (server/copies/record_copies.h): before a view opens, and older snapshots go
//   CopyParts       large parts of what ranks keep are copied into the store (server/copies/part_copies.h)
//   RoundDecision   to the lanes; their facts of rounds went the other way
//   TraceRounds     the lanes record those rounds (server/job_trace.h) -> TracePart, when they are over
//   StopJob         finished, stopped: the lanes' final state becomes a snapshot -> SnapshotDone. (The state also
//                   stays in memory for a next view until that snapshot is committed: it may fail.) A repeated StopJob
//                   reports that other nodes make progress: lanes that wait for residuals wait longer. Lanes' state of
//                   a view that is over becomes a snapshot in the same way.
//                   restart: the state stays in memory for the next view (server/kept_views.h) -> ShardKept
//   WriteCheckpoint what is in memory, of a round to come or of a view that is over, goes into a checkpoint's file
//                   -> CheckpointDone. (The checkpoint service writes what is in the store.)
//
// Without a store jobs run, but nothing is kept: the first SnapshotAt of a view and every final StopJob are answered
// "no store" (ok = false), so that the coordinator continues. Later SnapshotAts are not answered, so that the
// coordinator does not ask forever.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "server/copies/part_copies.h"
#include "server/copies/record_copies.h"
#include "server/copies/snapshot_fetches.h"
#include "server/job_trace.h"
#include "server/kept_views.h"
#include "server/lane/lane_commands.h"
#include "server/server_job.h"
#include "server/snapshot_loads.h"
#include "server/snapshot_writes.h"
#include "server/store/store.h"
#include "server/store/store_thread.h"
#include "server/stored_rounds.h"

namespace tributary {

// A snapshot that could not be written; no newer one of the job has been written since.
struct NotSaved {
  std::string job;  // its name
  Round round;
  std::string reason;
};

class ControlJobsOutput {
 public:
  virtual ~ControlJobsOutput() = default;
  virtual void send(ControlMessage message) = 0;                 // to the coordinator
  virtual void send_or_drop(const ControlMessage& message) = 0;  // the same, now or not at all
  virtual void hello() = 0;                                      // say hello again: the store's contents have changed
  virtual void changed() = 0;                                    // statuses() did
  virtual std::uint64_t now_ms() const = 0;
};

class ControlJobs {
 public:
  // store: null if there is none.
  ControlJobs(ServerConfig config, Store* store, Logger logger, ControlJobsOutput& output);
  // Other threads that carry things out; all null without a store. records: apart, so that a copy waits for no load.
  struct Threads {
    SnapshotOrders* snapshots = nullptr;
    StoreOrders* store = nullptr;
    StoreOrders* records = nullptr;
    FetchOrders* fetches = nullptr;
  };
  // Before anything else.
  void start(std::vector<LaneCommands*> lanes, const Threads& threads);

  // The coordinator.
  void on(const OpenJob& m);
  void on(const PrepareSnapshot& m);
  void on(const SnapshotAt& m);
  void on(const SnapshotCommit& m);
  void on(const CopySnapshot& m) { fetches_.on(m); }
  void on(const DealChunks& m) { fetches_.on(m); }
  void on(const ServerBook& m) { fetches_.on(m); }
  void on(const JobRecordCopy& m) { copies_.save(m); }
  void on(const WantRecord& m) { copies_.answer(m); }
  void on(const CopyParts& m) { part_copies_.on(m); }
  void on(const WantPart& m) { part_copies_.on(m); }
  void on(const StatePart& m) { part_copies_.on(m); }
  void on(const RoundDecision& m);
  void on(const TraceRounds& m) { trace_.on(m, find(m.job, m.view)); }
  void on(const StopJob& m);
  void on(const WriteCheckpoint& m);  // REQUIRES: m.from_memory(), and there is a store
  // The job is gone: an open view ends, and nothing of it is kept in memory, nor copies of its record and of what its
  // ranks keep. Writes for that checkpoint are given up.
  void on(const DropCheckpoint& m);
  // Gives up what is being written for that checkpoint, or of that job; its state stays in memory.
  void give_up(const DropCheckpoint& m);
  // Ends all views, because the coordinator knows none of the jobs; states stay in memory for the next views.
  void park_all(const std::string& why);
  // The coordinator that is about to know this server is in this process, and the store has its registry: then records
  // and large parts there are no copies.
  void coordinator_is_here(bool here);
  // Contents of a hello and of a heartbeat.
  void describe(ServerHello& hello);
  std::vector<JobProgress> progress() const;

  // The lanes and the snapshotter.
  void lane_opened(JobId job, ViewId view, const Status& status) { part_opened(job, view, status); }
  void lane_snapshot(LaneIndex lane, JobId job, ViewId view, Round round, bool started);
  void lane_parked(JobId job, ViewId view, bool any, Version min, Version max);
  void lane_stopped(JobId job, ViewId view, Round round, bool kept);
  void lane_facts(LaneIndex lane, RoundFacts facts);  // of a job with a gate
  void snapshot_finished(const SnapshotDone& done);
  void checkpoint_written(const WriteCheckpoint& order, const CheckpointDone& done);

  void tick();                                 // now and then
  void unpark(JobId job) { kept_.drop(job); }  // its kept state is not needed any more
  // Gives up kept states, because the process ends: rounds without a snapshot are not saved.
  void give_up_parked();
  bool contains(JobId job) const { return jobs_.contains(job); }
  bool empty() const { return jobs_.empty(); }
  bool keeps() const { return kept_.any(); }  // something of a view that is over, and more than was loaded for it
  std::vector<ServerJobStatus> statuses() const;
  std::vector<NotSaved> not_saved() const;

 private:
  bool end_snapshots(const ServerJob& job);
  void forget_snapshots(ServerJob& job);
  void cleared(JobId id);
  void part_opened(JobId id, ViewId view, const Status& status);
  void opened(JobId id, ViewId view, const Status& status);

  // control_jobs_load.cc
  void loaded(const std::shared_ptr<SnapshotLoad>& load, const Status& status);
  bool keep_load(JobId id, const std::string& why);
  ServerJob* that_waits_for(const KeptView& state);
  void take_up(JobId id);

  ServerJob* find(JobId id, ViewId view);
  ServerJob* take_back(JobId id, ViewId view, Round round);
  void stop_lanes(const ServerJob& job, bool keep, Round round, bool park = false) const;
  void drop(JobId id, const std::string& why);
  void park(JobId id, const std::string& why);
  void finish(JobId id);
  void capture(ServerJob& job, Round round, std::optional<WriteCheckpoint> checkpoint);
  void expect_snapshot(ServerJob& job, Round round, bool paced, std::optional<WriteCheckpoint> checkpoint);
  bool write_ended(JobId id, ViewId view, Round round);
  void reply_done(const ServerJob& job, Round round, const Status& saved, std::uint64_t bytes = 0);
  bool misses(const ViewPlan& view) const;

  const ServerConfig config_;
  const ShardIndex own_;
  const bool store_;  // there is one
  Logger logger_;
  ControlJobsOutput& output_;
  std::vector<LaneCommands*> lanes_;
  std::map<JobId, ServerJob> jobs_;
  std::map<JobId, NotSaved> not_saved_;
  KeptViews kept_;
  StoredRounds stored_;
  SnapshotWrites writes_;
  SnapshotFetches fetches_;
  SnapshotLoads loads_;
  RecordCopies copies_;
  PartCopies part_copies_;
  JobTrace trace_;
};

}  // namespace tributary

// ControlJobs: a server's jobs: opens and closes them on the lanes, loads their state, has snapshots taken. It has no
// threads, sockets or clocks of its own: messages and events come in, actions go out through the ports. The
// control thread (control.h) and the simulator (tests/sim) drive the same class.
//
//   OpenJob         lay the job out, give every lane its part, have the resume round loaded by the store's thread
//                   -> ShardReady, when all is there
//   PrepareSnapshot the lanes get memory for it; heartbeats report when they have it
//   SnapshotAt      the snapshotter expects it, then the lanes capture -> SnapshotDone when it is durable here
//   SnapshotCommit  older snapshots go
//   CopySnapshot    a part of a snapshot is read from another server into the store (server/copies/snapshot_fetches.h)
//                   -> SnapshotCopied, when it is durable
//   JobRecordCopy   a copy of the record is saved (server/record_copies.h): before a view opens, and older snapshots go
//   CopyParts       large parts of what ranks keep are copied into the store (server/part_copies.h)
//   RoundDecision   to the lanes; their facts of rounds went the other way
//   TraceRounds     the lanes record those rounds -> TracePart, when they are over
//   StopJob         finished, stopped: the lanes' final state becomes a snapshot -> SnapshotDone. (The state also
//                   stays in memory for a next view until that snapshot is committed: it may fail.) A repeated StopJob
//                   reports that other nodes make progress: lanes that wait for residuals wait longer. Lanes' state of
//                   a view that is over becomes a snapshot in the same way.
//                   restart: the state stays in memory for the next view -> ShardKept
//   WriteCheckpoint what is in memory, of a round to come or of a view that is over, goes into a checkpoint's file
//                   -> CheckpointDone. (The checkpoint service writes what is in the store.)
//
// A load for a view that never began stays as well, even an unfinished one: the next view that begins at that snapshot
// uses it. It is not reported, because to others it equals the store's snapshot. The same holds for a view that began
// here and got no further.
//
// Without a store jobs run, but nothing is kept: the first SnapshotAt of a view and every final StopJob are answered
// "no store" (ok = false), so that the coordinator continues. Later SnapshotAts are not answered, so that the
// coordinator does not ask forever.
//
// Thread rule: one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/config/job_plan.h"
#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "common/wire/redo_plan.h"
#include "server/copies/snapshot_fetches.h"
#include "server/job_trace.h"
#include "server/lane/lane_commands.h"
#include "server/memory_formula.h"
#include "server/part_copies.h"
#include "server/record_copies.h"
#include "server/store/snapshotter.h"
#include "server/store/store.h"
#include "server/store/store_thread.h"

namespace tributary {

// A snapshot that could not be written; no newer one of the job has been written since.
struct NotSaved {
  std::string job;  // its name
  Round round;
  std::string reason;
};

// A job on this server, for status and metrics.
struct ControlJobStatus {
  std::shared_ptr<const ViewPlan> view;
  std::string phase;           // opening, running, stopping
  std::uint32_t chunks = 0;    // owned by this server
  std::uint64_t elements = 0;  // in them
  bool resumed = false;        // from the snapshot of ViewPlan::start
  std::optional<Round> snapshot_pending;
  std::optional<Round> snapshot_durable;
  Round snapshot_committed;  // the newest that all servers are known to have; 0: none
  std::uint64_t snapshot_bytes = 0;
  std::string snapshot_error;  // of the last one that failed
  Round gate_round;            // jobs with a gate: the newest round that was decided, in this view
  GateDecision decision;
  std::uint64_t rounds_clipped = 0, rounds_skipped = 0;  // in this view
  ShardMemory memory;                                    // without what the gauges know
  std::vector<std::shared_ptr<LaneJobGauges>> gauges;

  // From the gauges, as of now.
  Version min_version() const;
  Version max_version() const;
  std::uint64_t pool_bytes() const;
  bool prepared() const;  // all lanes are, for a snapshot
  std::uint64_t withheld() const;
  // By node, in modes with clocks: on the chunks where it is last and furthest.
  std::vector<std::pair<Round, Round>> clocks() const;
  MemoryTerms memory_terms() const;
};

class ControlJobsOutput {
 public:
  virtual ~ControlJobsOutput() = default;
  virtual void send(ControlMessage message) = 0;                 // to the coordinator
  virtual void send_or_drop(const ControlMessage& message) = 0;  // the same, now or not at all
  virtual void hello() = 0;                                      // say hello again: the store's contents have changed
  virtual void changed() = 0;                                    // of jobs()
  virtual std::uint64_t now_ms() const = 0;
};

class ControlJobs {
 public:
  // State of a view that ended without order stays in memory this long for the next one.
  static constexpr std::uint64_t kParkedMs = 600'000;
  static constexpr std::uint64_t kRepeatFactsMs = 500;  // a gate's facts that were not answered are sent again

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
  void on(const JobRecordCopy& m);
  void on(const WantRecord& m);
  void on(const CopyParts& m) { part_copies_.on(m); }
  void on(const WantPart& m) { part_copies_.on(m); }
  void on(const StatePart& m) { part_copies_.on(m); }
  void on(const RoundDecision& m);
  void on(const TraceRounds& m);
  void on(const StopJob& m);
  void on(const WriteCheckpoint& m);  // REQUIRES: m.from_memory(), and there is a store
  // The job is gone, and so are the copies of its record and of what its ranks keep.
  void forget(JobId job);
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

  void tick();             // now and then
  void unpark(JobId job);  // its kept state is not needed any more
  // Gives up kept states, because the process ends: rounds without a snapshot are not saved.
  void give_up_parked();
  bool contains(JobId job) const { return jobs_.contains(job); }
  bool empty() const { return jobs_.empty(); }
  bool keeps() const;  // something of a view that is over, and more than was loaded for it
  std::vector<ControlJobStatus> statuses() const;
  std::vector<NotSaved> not_saved() const;
  std::string no_store() const;  // in words: this server has none

 private:
  // A snapshot that the store's thread reads into the lanes. Read and written by both threads: the atomics alone.
  struct Load {
    Load(std::shared_ptr<const ViewPlan> asked, std::uint64_t now_ms)
        : view(std::move(asked)), at(view->view), began_ms(now_ms) {}
    const std::shared_ptr<const ViewPlan> view;  // that asked for it
    ViewId at;                                   // under which the lanes have it
    const std::uint64_t began_ms;
    bool there = false;                   // all of it
    bool began = false;                   // a view has begun with it
    std::atomic<std::uint64_t> bytes{0};  // of it
    std::atomic<bool> wanted{true};
    std::vector<bool> given;  // by chunk: a lane has it. The store's thread's, while that reads
  };
  struct Job {
    ControlJobStatus status;
    std::vector<LaneIndex> lanes;  // that own chunks of it
    // Lanes that have not opened yet, snapshots of earlier views (and copies of such) that have not ended, drops from the
    // store, and a copy of the record that is being saved.
    std::size_t opening = 0;
    std::shared_ptr<Load> load;     // the state that it begins with, if that comes from the store
    std::vector<ShardJob> parts;    // lanes', until they have of an earlier view's load what these go on with
    bool clearing = false;          // snapshots of earlier views have not ended
    Status opened;                  // the first error of a lane
    bool refused_snapshot = false;  // "no store" was sent
    bool missed_snapshot = false;   // the one that is pending was named too late
    std::optional<WriteCheckpoint> checkpoint;  // where the same goes, if not into the store
    bool ending = false;                        // goes when its final snapshot is done
    bool kept = false;                          // it goes on with what was in memory
    // Facts that were sent, by lane; repeated until a decision about that round or a later one comes. (A lane that
    // reports a decision gets no other reply.)
    std::map<LaneIndex, RoundFacts> undecided;
    std::uint64_t facts_ms = 0;  // when they were sent last
    const ViewPlan& view() const { return *status.view; }
    const JobPlan& plan() const { return *status.view->plan; }
  };
  // The lanes' state of a job's last view. While a job is ending, it has both a Parked and a Job.
  struct Parked {
    ControlJobStatus status;  // when that view ended
    std::vector<LaneIndex> lanes;
    std::size_t parking = 0;    // lanes that have not reported their states
    bool all = true;            // all that have keep something
    bool asked = true;          // the coordinator waits for a ShardKept
    std::optional<Round> last;  // the state that a stop at this round left: goes when that is committed
    // The load that its view began with, or was to begin with. Lanes keep the state when it is there.
    std::shared_ptr<Load> load;
    bool never_began() const { return load && !load->began; }
    Version min_version{~0ull}, max_version;
    std::uint64_t until_ms = 0;
    std::optional<StopJob> save;  // to be done when a snapshot of that round, which was given up, has ended
    const ViewPlan& view() const { return *status.view; }
  };

  Status prepare(const OpenJob& m, Job& job, std::vector<ShardJob>& parts) const;
  Status check_memory(const Job& job) const;
  std::uint64_t memory_of(const ControlJobStatus& status) const;
  bool end_snapshots(const Job& job);
  static Round first_beyond(const Job& job);
  void forget_snapshots(Job& job);
  void cleared(JobId id);
  // Returns the store's contents, without those that are being dropped.
  std::vector<StoredJob> stored() const;
  void drop_before(JobId job, Round round);
  void drop_rounds(JobId job, Round first, Round last);
  void drop_stored(JobId job, Round first, Round last, StoreOrders::Done done);

  // control_jobs_load.cc
  void load(Job& job, const ServerEntry& copy);
  void fill(const std::shared_ptr<Load>& load, const SnapshotInfo& what, const ServerEntry& copy);
  EachChunk restores(const std::shared_ptr<Load>& load) const;
  void loaded(const std::shared_ptr<Load>& load, const Status& status);
  std::shared_ptr<Load> load_for(const ViewPlan& view) const;
  bool keep_load(JobId id, const std::string& why);
  Job* that_waits_for(const Parked& state);
  void take_up(JobId id);

  void part_opened(JobId id, ViewId view, const Status& status);
  void opened(JobId id, ViewId view, const Status& status);
  void stop_lanes(const Job& job, bool keep, Round round, bool park = false) const;
  Job* take_back(JobId id, ViewId view, Round round);
  bool park_last(const Job& job, Round round);
  Parked& begin_parking(const Job& job);
  void tell_parked(JobId id, ViewId view);
  void drop(JobId id, const std::string& why);
  void park(JobId id, const std::string& why);
  void parked(JobId id, const Parked& state);
  void reply_done(const Job& job, Round round, const Status& saved, std::uint64_t bytes = 0);
  void finish(JobId id);
  Job* find(JobId id, ViewId view);
  bool stored(JobId job, Round round) const;
  bool misses(const ViewPlan& view) const;
  void repeat_facts(std::uint64_t now_ms);
  void end_trace();
  SnapshotInfo info(const Job& job, Round round) const;
  void capture(Job& job, Round round, std::optional<WriteCheckpoint> checkpoint);
  void expect_snapshot(Job& job, Round round, bool paced, std::optional<WriteCheckpoint> checkpoint);
  bool write_ended(JobId id, ViewId view, Round round);

  const ServerConfig config_;
  Store* const store_;
  Logger logger_;
  ControlJobsOutput& output_;
  std::vector<LaneCommands*> lanes_;
  SnapshotOrders* snapshotter_ = nullptr;
  StoreOrders* orders_ = nullptr;
  std::map<JobId, Job> jobs_;
  std::map<JobId, Parked> parked_;
  std::map<JobId, NotSaved> not_saved_;
  RecordCopies copies_;
  PartCopies part_copies_;
  SnapshotFetches fetches_;
  std::optional<JobTrace> trace_;
  std::multiset<std::tuple<JobId, ViewId, Round>> writing_;  // snapshots that were expected and have not ended
  std::list<std::tuple<JobId, Round, Round>> dropping_;      // from the store: first and last
};

}  // namespace tributary

// Control: this server's side of the control path. A thread with a DEALER to the coordinator (server 0 too talks to its
// own over the socket), which opens and closes jobs on the lanes, loads their state, and lets snapshots be taken.
//
//   OpenJob         lay the job out, give every lane its part, load the resume round from the store and take logged
//   steps
//                   after it again -> ShardReady
//   SnapshotAt      the snapshotter expects it, then the lanes capture -> SnapshotDone when it is durable here
//   SnapshotCommit  older snapshots go
//   Write-, Seal-, Load-, DropCheckpoint    passed on to server/checkpoint_service.h -> CheckpointDone
//   RoundDecision   to the lanes; their facts of rounds went the other way
//   StopJob         finished, stopped: the lanes' final state becomes a snapshot -> SnapshotDone. restart: the lanes'
//                   state is parked in memory until the next view wants it -> ShardKept
//
// Another incarnation of the coordinator (or one that does not know us) has lost what it knew of our jobs: they are
// parked, as for a restart, and we say hello again.
//
// Without a store jobs run, but nothing is kept: the first SnapshotAt of a view and every final StopJob are answered
// "no store" (ok = false), so that the coordinator goes on; later SnapshotAts are not answered,
// so that it does not ask for ever.
//
// Thread rule: all state belongs to the control thread; lanes and the snapshotter post events to it; status() reads a
// copy that the thread publishes. While a job is loaded the thread sends heartbeats between chunks,
// and other messages wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "common/config.h"
#include "common/event_fd.h"
#include "common/layout.h"
#include "common/log.h"
#include "common/messages.h"
#include "server/lane.h"
#include "server/memory_formula.h"
#include "server/redo_logs.h"
#include "server/snapshotter.h"
#include "server/store.h"

namespace tributary {

class CheckpointService;

// What status and metrics tell of a job on this server.
struct ControlJobStatus {
  JobId job;
  std::string name;
  ViewId view;
  std::string phase;  // opening, running, stopping
  std::uint32_t nodes = 0;
  std::uint32_t chunks = 0;    // owned by this server
  std::uint64_t elements = 0;  // in them
  std::string optimizer;
  bool resumed = false;
  Round resume_round;
  std::optional<Round> snapshot_pending;
  std::optional<Round> snapshot_durable;
  std::uint64_t snapshot_bytes = 0;
  std::string snapshot_error;  // of the last one that failed
  std::optional<RedoLogStatus> log;
  bool gate = false;  // the job has one; then:
  Round gate_round;   // the newest round that was decided, in this view
  GateDecision decision;
  std::uint64_t rounds_clipped = 0, rounds_skipped = 0;  // in this view
  ShardMemory memory;                                    // without what the gauges know
  std::vector<std::shared_ptr<LaneJobGauges>> gauges;

  // From the gauges, as of now.
  Version min_version() const;
  Version max_version() const;
  std::uint64_t pool_bytes() const;
  std::uint64_t withheld() const;
  std::uint64_t stalled() const;
  std::uint64_t late_pushes() const;
  // By node, in modes with clocks: on the chunks where it is last and furthest.
  std::vector<std::pair<Round, Round>> clocks() const;
  MemoryTerms memory_terms() const;
};

struct ControlStatus {
  bool joined = false;  // the coordinator knows us
  std::uint64_t coordinator_incarnation = 0;
  std::uint64_t silent_ms = 0;  // since the coordinator's last word
  std::vector<ControlJobStatus> jobs;
};

class Control final : public LaneListener {
 public:
  static constexpr int kBatch = 64;                // control messages per turn
  static constexpr int kHighWater = 1000;          // that wait in ZeroMQ
  static constexpr std::size_t kMaxOutbox = 1000;  // that wait for the coordinator to be reachable
  static constexpr std::uint64_t kHelloMs = 1000;  // between hellos while unanswered
  // A server that was told to stop and has no job waits this long for the coordinator's word before it goes anyway.
  static constexpr std::uint64_t kDrainAloneMs = 1000;
  // State of a view that ended without order stays in memory this long for the next one.
  static constexpr std::uint64_t kParkedMs = 600'000;
  static constexpr std::uint64_t kRepeatFactsMs = 500;  // a gate's facts that were not answered are sent again

  // coordinator: endpoint to connect to. store may be null; it must outlive this object.
  static Result<std::unique_ptr<Control>> create(const ServerConfig& config, std::string coordinator, Store* store,
                                                 Logger logger);
  ~Control() override;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Starts the thread. lanes, and snapshotter, checkpoints and logs (null without a store), must outlive stop().
  void start(std::vector<Lane*> lanes, Snapshotter* snapshotter, CheckpointService* checkpoints = nullptr,
             RedoLogs* logs = nullptr);
  // Asks the coordinator to stop this server's jobs in good order; drained() is true when that is done.
  void drain();
  bool drained() const { return drained_.load(std::memory_order_acquire); }
  // Ends the thread. Idempotent. Events posted afterwards are dropped.
  void stop();

  ControlStatus status() const;

  // LaneListener and the snapshotter's callback: any thread.
  void lane_opened(LaneIndex lane, JobId job, ViewId view, const Status& status) override;
  void lane_snapshot(LaneIndex lane, JobId job, ViewId view, Round round, bool started) override;
  void lane_parked(LaneIndex lane, JobId job, ViewId view, bool any, Version min, Version max) override;
  void lane_stopped(LaneIndex lane, JobId job, ViewId view, Round round, bool kept) override;
  void lane_captured(ChunkSnapshot snapshot) override;
  void lane_logged(LoggedStep step) override;
  void lane_facts(LaneIndex lane, RoundFacts facts) override;
  void snapshot_finished(const SnapshotDone& done);
  // CheckpointService's callback: any thread.
  void checkpoint_finished(const CheckpointDone& done);

 private:
  struct Job {
    ControlJobStatus status;
    std::shared_ptr<const Layout> layout;
    std::vector<LaneIndex> lanes;   // that own chunks of it
    std::size_t opening = 0;        // lanes that have not opened yet
    Status opened;                  // the first error of a lane
    bool refused_snapshot = false;  // "no store" was said
    bool ending = false;            // goes when its final snapshot is done
    bool recovers = false;
    std::optional<RedoLogs::Plan> log;  // none: its steps are not logged
    Round replay_to;                    // from resume_round on, out of the log
    // Sent, by lane; again until there is a decision about that round or a later one. (What a lane tells of a decision
    // that it has is not answered otherwise.)
    std::map<LaneIndex, RoundFacts> undecided;
    std::uint64_t facts_ms = 0;  // when they were sent last
  };
  // What the lanes kept of a job's last view.
  struct Parked {
    ViewId view;
    std::vector<LaneIndex> lanes;
    std::size_t parking = 0;  // lanes that have not said what they keep
    bool all = true;          // all that have keep something
    Version min_version{~0ull}, max_version;
    std::uint64_t until_ms = 0;
  };

  Control(const ServerConfig& config, std::string coordinator, Store* store, Logger logger, EventFd wake);

  void run();
  void run_events();
  void post(std::function<void()> event);
  void receive_batch();
  void heartbeat(std::uint64_t now_ms);
  void beat();
  void check_silence(std::uint64_t now_ms);
  void say_hello(std::uint64_t now_ms);
  void flush();
  void send(ControlMessage message);
  bool send_now_or_drop(const ControlMessage& message);
  void meet(std::uint64_t incarnation, std::uint64_t now_ms, bool hello);
  void check_drain(std::uint64_t now_ms);
  void publish();

  void on(const OpenJob& m);
  void on(const SnapshotAt& m);
  void on(const SnapshotCommit& m);
  void on(const RoundDecision& m);
  void repeat_facts(std::uint64_t now_ms);
  void on(const StopJob& m);
  void on(const WriteCheckpoint& m);
  void on(const SealCheckpoint& m);
  void on(const LoadCheckpoint& m);
  void on(const DropCheckpoint& m);
  template <class Order>
  void order_checkpoint(const Order& order, void (CheckpointService::*give)(const Order&));
  Status prepare(const OpenJob& m, Job& job, std::vector<ShardJob>& parts) const;
  void forget_snapshots(const OpenJob& m);
  Status load(const Job& job);
  Status replay(const Job& job);
  void begin_log(const OpenJob& m, const Job& job);
  void tell_kept(JobId id, ViewId view, bool any, Version min, Version max);
  Status load_chunk(const Job& job, const LoadedChunk& loaded, std::vector<bool>& seen);
  void opened(JobId id, ViewId view, const Status& status);
  void stop_lanes(const Job& job, bool keep, Round round) const;
  void drop(JobId id, const std::string& why);
  void park(JobId id, const std::string& why);
  void unpark(JobId id);
  void parked(JobId id, const Parked& state);
  void forget_parked(std::uint64_t now_ms);
  void reply_done(const Job& job, Round round, bool ok, std::uint64_t bytes, const std::string& message);
  void finish(JobId id);
  Job* find(JobId id, ViewId view);
  SnapshotInfo info(const Job& job, Round round) const;
  void expect_snapshot(Job& job, Round round, bool paced);

  const ServerConfig config_;
  const std::string coordinator_;
  Store* const store_;
  Logger logger_;
  RateLimitedLog noise_;
  const std::uint64_t incarnation_;
  std::vector<Lane*> lanes_;
  Snapshotter* snapshotter_ = nullptr;
  CheckpointService* checkpoints_ = nullptr;
  RedoLogs* logs_ = nullptr;
  EventFd wake_;
  std::atomic<bool> stopping_{false}, draining_{false}, drained_{false};

  std::mutex events_mutex_;
  std::deque<std::function<void()>> events_;

  // The control thread's.
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::deque<ControlMessage> outbox_;
  std::map<JobId, Job> jobs_;
  std::map<JobId, Parked> parked_;
  bool joined_ = false;
  std::uint64_t coordinator_incarnation_ = 0;
  std::uint64_t hello_ms_ = 0, heartbeat_ms_ = 0, heard_ms_ = 0, drain_ms_ = 0;
  bool silence_logged_ = false;

  mutable std::mutex status_mutex_;  // guards published_ and published_heard_ms_
  ControlStatus published_;
  std::uint64_t published_heard_ms_ = 0;

  std::thread thread_;
};

}  // namespace tributary

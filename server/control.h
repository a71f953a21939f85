// Control: this server's side of the control path. A thread with a link to the coordinator (server 0 too talks to its
// own over the socket). ControlJobs (control_jobs.h) acts on jobs; orders about checkpoints are passed on to
// server/store/checkpoint_service.h.
//
// A coordinator that is a new process, or does not know this server, has lost its knowledge of the server's jobs. These
// are parked then, as for a restart.
//
// Thread rule: all state belongs to the control thread, which waits for no disk; lanes, the snapshotter and the store's
// thread post events to it; status() reads a copy that the thread publishes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/config/config.h"
#include "common/daemon/command_queue.h"
#include "common/daemon/coordinator_link.h"
#include "common/daemon/log.h"
#include "common/doctor/self_diagnosis.h"
#include "common/security/admitted_nodes.h"
#include "common/security/credentials.h"
#include "common/security/path_roots.h"
#include "common/wire/messages.h"
#include "server/control_jobs.h"
#include "server/lane/lane.h"
#include "server/store/snapshotter.h"
#include "server/store/store.h"

namespace tributary {

class CheckpointService;
class CopyPort;

struct ControlStatus {
  bool joined = false;                 // the coordinator knows us
  std::optional<std::string> refused;  // it never will: why, and what to change. Only before it first knew us
  std::uint64_t coordinator_incarnation = 0;
  std::uint64_t silent_ms = 0;  // since the coordinator's last word
  std::vector<ServerJobStatus> jobs;
  std::vector<NotSaved> not_saved;  // jobs whose newest wanted snapshot could not be written
};

class Control final : public LaneListener, private ControlJobsOutput, private CoordinatorLinkOwner {
 public:
  // A stopping server without any job's state in memory waits this long for the coordinator's permission before it ends
  // anyway.
  static constexpr std::uint64_t kDrainAloneMs = 1000;
  static constexpr std::uint64_t kDrainAgainMs = 5000;  // without an answer

  // own_coordinator: the endpoint of the coordinator in this process; "": there is none. store may be null; it must
  // outlive this object.
  static Result<std::unique_ptr<Control>> create(const ServerConfig& config, const Credentials& credentials,
                                                 const std::string& own_coordinator, Store* store, Logger logger);
  ~Control() override;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Parts of the server that it works with; all null without a store.
  struct Parts {
    Snapshotter* snapshotter = nullptr;
    StoreOrders* store = nullptr;
    StoreOrders* records = nullptr;
    CheckpointService* checkpoints = nullptr;
    // Null: other servers have no copies of this one's snapshots, nor this one of theirs.
    FetchOrders* fetches = nullptr;
    CopyPort* copy_port = nullptr;
  };
  // Starts the thread. lanes and parts must outlive stop().
  void start(std::vector<Lane*> lanes, const Parts& parts);
  // Asks the coordinator to stop this server's jobs cleanly; drained() is true when that is done.
  void drain();
  bool drained() const { return drained_.load(std::memory_order_acquire); }
  // Ends the thread. Idempotent. Events posted afterwards are dropped.
  void stop();

  ControlStatus status() const;

  const PathRoots& checkpoint_roots() const { return roots_; }  // any thread

  AdmittedNodes& admitted() { return admitted_; }  // any thread

  // To be carried out on the control thread. Any thread.
  void post(std::function<void()> event) { events_.push(std::move(event)); }
  // LaneListener and the snapshotter's callback: any thread.
  void lane_opened(LaneIndex lane, JobId job, ViewId view, const Status& status) override;
  void lane_snapshot(LaneIndex lane, JobId job, ViewId view, Round round, bool started) override;
  void lane_parked(LaneIndex lane, JobId job, ViewId view, bool any, Version min, Version max) override;
  void lane_stopped(LaneIndex lane, JobId job, ViewId view, Round round, bool kept) override;
  void lane_captured(ChunkSnapshot snapshot) override;
  void lane_facts(LaneIndex lane, RoundFacts facts) override;
  void snapshot_finished(const SnapshotDone& done);
  void checkpoint_written(const WriteCheckpoint& order, const CheckpointDone& done);
  // CheckpointService's callback: any thread.
  void checkpoint_finished(const CheckpointDone& done);

 private:
  Control(const ServerConfig& config, std::shared_ptr<const KeyPair> own, bool coordinates, Store* store, Logger logger,
          EventFd wake);

  void run();
  void check_drain(std::uint64_t now_ms);
  void end_drain();
  void publish();

  // CoordinatorLinkOwner
  ControlMessage hello_message() override;
  Heartbeat heartbeat_message() override;
  void on_met(bool another) override;
  void on_term(Term term) override;
  void on_forgotten() override;
  void on_control(ControlMessage message) override;

  template <class M>
  void on(const M& m) requires requires(ControlJobs& jobs) {
    jobs.on(m);
  }
  { jobs_.on(m); }
  void on(const OpenJob& m);
  void on(const Diagnose& m);
  void on(const ServerBook& m);
  void on(const WriteCheckpoint& m);
  void on(const SealCheckpoint& m);
  void on(const LoadCheckpoint& m);
  void on(const DropCheckpoint& m);
  template <class Order, class Give>
  void order_checkpoint(const Order& order, Give give);

  // ControlJobsOutput
  void send(ControlMessage message) override { link_->send(message); }
  void send_or_drop(const ControlMessage& message) override { link_->send_or_drop(message); }
  void hello() override { link_->say_hello(); }
  void changed() override { publish(); }
  std::uint64_t now_ms() const override { return steady_ms(); }

  const ServerConfig config_;
  const std::string key_;  // public; "": none
  Store* const store_;
  Logger logger_;
  RateLimitedLog noise_;
  const std::uint64_t incarnation_;
  AdmittedNodes admitted_;
  const PathRoots roots_;  // of checkpoints
  std::vector<Lane*> lanes_;
  Parts parts_;
  CommandQueue<std::function<void()>> events_;
  std::atomic<bool> stopping_{false}, draining_{false}, drained_{false};

  // The control thread's.
  std::unique_ptr<CoordinatorLink> link_;
  ControlJobs jobs_;
  std::uint64_t drain_ms_ = 0, drain_due_ms_ = 0;  // first; next
  const bool coordinates_;                         // a coordinator may be in this process

  mutable std::mutex status_mutex_;  // guards published_
  ControlStatus published_;

  std::thread thread_;
  SelfDiagnosis self_diagnosis_;  // tells the link
};

}  // namespace tributary

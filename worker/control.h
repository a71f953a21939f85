// WorkerControl: the worker's side of the control path. A thread with a DEALER to the coordinator: hello, heartbeats,
// and the messages of NodeJobs in order. Rounds need no coordinator: while it is silent,
// jobs go on, and a warning says so.
//
// Messages wait (ControlOutbox) until the coordinator has answered the hello, so that it knows who is speaking. Before
// a message that changes a job a heartbeat is sent: after a lost connection the coordinator knows us by our
// incarnation, not by our address.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <zmq.hpp>

#include "common/base/event_fd.h"
#include "common/base/result.h"
#include "common/base/waking_clock.h"
#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "worker/control_outbox.h"
#include "worker/node_jobs.h"

namespace tributary {

class WorkerControlListener {
 public:
  virtual ~WorkerControlListener() = default;
  // On the control thread: must not block.
  virtual void on_control(ControlMessage message) = 0;
  // On the control thread. Of jobs that nobody else can tell of: those of all-reduce mode.
  virtual std::vector<JobProgress> progress() const { return {}; }
  // On the control thread. Where the time of this node goes, by job.
  virtual std::vector<NodePace> paces() const { return {}; }
  // The coordinator is a new process, or has given this worker up: what it knew of our jobs is gone.
  virtual void on_coordinator_restarted() = 0;
};

struct WorkerControlOptions {
  std::string coordinator;
  std::string name;
  std::string host;
  double bandwidth = 1.0;
  std::string exclusive;  // WorkerHello::exclusive
  std::uint64_t incarnation = 0;
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t peer_timeout_ms = 10'000;
};

class WorkerControl final : public CoordinatorPort {
 public:
  static constexpr int kBatch = 64;
  static constexpr int kHighWater = 1000;
  static constexpr int kLingerMs = 500;  // for last words when the daemon goes

  // kConfig if the coordinator's address cannot be used.
  static Result<std::unique_ptr<WorkerControl>> start(WorkerControlOptions options, WorkerControlListener& listener,
                                                      Logger logger);
  ~WorkerControl() override;
  WorkerControl(const WorkerControl&) = delete;
  WorkerControl& operator=(const WorkerControl&) = delete;

  // Any thread.
  void send(const ControlMessage& message) override;
  // Why it never will be, and what to change; only before the first time.
  std::optional<std::string> refused() const;
  bool connected() const { return connected_.load(std::memory_order_relaxed); }  // heard within peer_timeout_ms

 private:
  WorkerControl(WorkerControlOptions options, WorkerControlListener& listener, Logger logger, EventFd wake);
  void run();
  void beat(std::uint64_t now_ms);
  void flush();
  void tell_lost(std::uint64_t now_ms);
  void receive_batch(std::uint64_t now_ms);
  void handle(ControlMessage message);
  bool transmit(const ControlMessage& message);

  const WorkerControlOptions options_;
  WorkerControlListener& listener_;
  Logger logger_;
  RateLimitedLog noise_;
  EventFd wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> connected_{false};

  mutable std::mutex mutex_;  // guards outbox_, lost_ and refused_
  ControlOutbox outbox_;
  std::string lost_;  // what had no room in it, and nobody has heard of yet
  std::optional<std::string> refused_;

  // The thread's.
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::uint64_t coordinator_ = 0;  // its incarnation; 0: our hello is not answered
  std::uint64_t heard_ms_ = 0;
  WakingClock waking_;  // by which the coordinator is silent or not
  std::uint64_t heard_waking_ms_ = 0;
  bool warned_ = false;
  bool ever_met_ = false;
  std::thread thread_;
};

}  // namespace tributary

// WorkerControl: the worker's side of the control path: a thread with a link to the coordinator, for the messages of
// NodeJobs in order. Rounds need no coordinator: while it is silent, jobs continue, with a warning.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/result.h"
#include "common/daemon/coordinator_link.h"
#include "common/daemon/log.h"
#include "common/doctor/self_diagnosis.h"
#include "common/wire/messages.h"
#include "worker/node_jobs.h"

namespace tributary {

class WorkerControlListener {
 public:
  virtual ~WorkerControlListener() = default;
  // On the control thread: must not block.
  virtual void on_control(ControlMessage message) = 0;
  // On the control thread. Returns the node's report of every second, but for its incarnation.
  virtual Heartbeat heartbeat() const { return {}; }
  // The coordinator is a new process, or has given this worker up: it knows nothing of this worker's jobs.
  virtual void on_coordinator_restarted() = 0;
};

class WorkerControl final : public CoordinatorPort, private CoordinatorLinkOwner {
 public:
  // kConfig if the coordinator's address cannot be used. look: at this daemon, when the coordinator asks for it.
  static Result<std::unique_ptr<WorkerControl>> start(WorkerHello hello, CoordinatorLinkOptions options,
                                                      WorkerControlListener& listener, SelfDiagnosis::Look look,
                                                      Logger logger);
  ~WorkerControl() override;
  WorkerControl(const WorkerControl&) = delete;
  WorkerControl& operator=(const WorkerControl&) = delete;

  // Any thread.
  void send(const ControlMessage& message) override { link_->send(message); }
  // Returns why it never will be connected, and the cure; only before the first connection.
  std::optional<std::string> refused() const { return link_->refused(); }
  bool connected() const { return link_->connected(); }  // heard within peer_timeout_ms
  std::string coordinator_address() const { return link_->address(); }

 private:
  WorkerControl(WorkerHello hello, WorkerControlListener& listener, SelfDiagnosis::Look look, const Logger& logger);
  void run();

  // CoordinatorLinkOwner
  ControlMessage hello_message() override { return hello_; }
  Heartbeat heartbeat_message() override { return listener_.heartbeat(); }
  void on_met(bool another) override {
    if (another) listener_.on_coordinator_restarted();
  }
  void on_forgotten() override { listener_.on_coordinator_restarted(); }
  void on_control(ControlMessage message) override;

  const WorkerHello hello_;
  WorkerControlListener& listener_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<CoordinatorLink> link_;
  SelfDiagnosis self_diagnosis_;  // tells the link
  std::thread thread_;
};

}  // namespace tributary

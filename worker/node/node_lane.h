// NodeLane: the common part of a worker's lanes (lane.h, allreduce_lane.h), as jobs see them: a thread, the doorbell
// that trainers ring, the commands of the attach thread, the listener for failures, and the number of jobs that outlive
// their view.
//
// Thread rule: any thread; run() is the lane's own.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/result.h"
#include "common/daemon/command_queue.h"
#include "common/daemon/log.h"
#include "common/system/event_fd.h"
#include "worker/node/job.h"

namespace tributary {

class NodeLane {
 public:
  static constexpr int kTickMs = 50;  // time-outs, statistics

  NodeLane(const NodeLane&) = delete;
  NodeLane& operator=(const NodeLane&) = delete;

  // Trainers write to it when a tensor is ready.
  int doorbell() const { return doorbell_.fd(); }
  // Jobs that still owe something to servers, neighbours or the disk after their view ended.
  std::size_t jobs_keeping() const { return jobs_keeping_.load(std::memory_order_acquire); }
  // Jobs whose memory is still in use.
  std::size_t jobs_held() const { return jobs_held_.load(std::memory_order_acquire); }

  // ---- For its jobs ----
  const Logger& logger() const { return logger_; }
  void failed(const std::shared_ptr<NodeJob>& job, LaneFailure failure) {
    listener_.lane_failed(job, std::move(failure));
  }
  void rouse() { commands_.rouse(); }

 protected:
  struct Bells {
    EventFd doorbell, commands;
    static Result<Bells> create();
  };
  NodeLane(WorkerLaneListener& listener, Logger logger, Bells bells)
      : listener_(listener),
        logger_(std::move(logger)),
        doorbell_(std::move(bells.doorbell)),
        commands_(std::move(bells.commands)) {}
  virtual ~NodeLane() = default;  // REQUIRES: stop()
  void start(const char* name);
  void stop();
  virtual void run() = 0;
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  void command(std::function<void()> run) { commands_.push(std::move(run)); }

 private:
  WorkerLaneListener& listener_;
  const Logger logger_;

 protected:
  EventFd doorbell_;
  CommandQueue<std::function<void()>> commands_;
  std::atomic<std::size_t> jobs_held_{0}, jobs_keeping_{0};

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tributary

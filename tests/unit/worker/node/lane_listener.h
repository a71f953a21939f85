// Records the reports of a server's lane, for a test to wait for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "server/lane/lane.h"

namespace tributary::testing {

// Collects what a lane reports; every wait ends after 10 s.
class Listener final : public LaneListener {
 public:
  struct Stopped {
    JobId job;
    Round round;
    bool kept = false;
  };
  struct Parked {
    bool any = false;
    Version min, max;
  };
  void lane_opened(LaneIndex, JobId, ViewId, const Status& status) override { push(opened_, status); }
  void lane_snapshot(LaneIndex, JobId, ViewId, Round, bool started) override { push(snapshots_, started); }
  void lane_parked(LaneIndex, JobId, ViewId, bool any, Version min, Version max) override {
    push(parked_, Parked{any, min, max});
  }
  void lane_stopped(LaneIndex, JobId job, ViewId, Round round, bool kept) override {
    push(stopped_, Stopped{job, round, kept});
  }
  void lane_captured(ChunkSnapshot snapshot) override { push(captured_, std::move(snapshot)); }

  std::optional<Status> opened() { return pop(opened_); }
  std::optional<bool> snapshot() { return pop(snapshots_); }
  std::optional<Parked> parked() { return pop(parked_); }
  std::optional<Stopped> stopped() { return pop(stopped_); }
  std::optional<ChunkSnapshot> captured() { return pop(captured_); }

 private:
  template <class T>
  void push(std::deque<T>& queue, T value) {
    const std::lock_guard lock(mutex_);
    queue.push_back(std::move(value));
    changed_.notify_all();
  }
  template <class T>
  std::optional<T> pop(std::deque<T>& queue) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(10), [&] { return !queue.empty(); })) return {};
    std::optional<T> value(std::move(queue.front()));
    queue.pop_front();
    return value;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Status> opened_;
  std::deque<bool> snapshots_;
  std::deque<Parked> parked_;
  std::deque<Stopped> stopped_;
  std::deque<ChunkSnapshot> captured_;
};

}  // namespace tributary::testing

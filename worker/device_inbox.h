// DeviceInbox: what a job's device engine is told, by the lanes and by host callbacks on the devices' streams. A queue
// with a mutex that is held for a few instructions, and an eventfd that is written only when the queue was empty.
//
// Its size is fixed: a chunk has at most one order of each kind pending, a device one completion per group and
// direction. All-reduce jobs (allreduce_engine.h) use kReduce, kReduced (the weights of the group that `chunk` begins
// are there) and kDelivered.
//
// It owns what host callbacks are given. One that comes late, from a device that hung, may find its engine gone: the
// inbox must outlive it (DeviceApi::keep()).
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "common/assert.h"
#include "common/event_fd.h"
#include "common/ids.h"

namespace tributary {

struct DeviceOrder {
  enum class Kind : std::uint8_t {
    // From the lanes.
    kReduce,   // flag: with the residual
    kDeliver,  // flag: fp32 parameters whatever the encoding
    kRestoreResidual,
    kFetchResidual,
    // From the devices.
    kReduced,    // chunk's frame is in pinned memory
    kArrived,    // chunk's answer is in the parameters of its own device
    kDelivered,  // `chunk` is the group's first; the group's parameters are on the device of `position`
    kResidualMoved,
  };
  Kind kind = Kind::kReduce;
  ChunkIndex chunk;
  std::uint32_t position = 0;
  bool flag = false;
  std::uint64_t weight = 0;  // kReduce: samples in the node's sum
};

class DeviceInbox;

// What a host callback on a stream is given: where to post what.
struct DeviceCallback {
  DeviceInbox* inbox = nullptr;
  DeviceOrder order;
  static void post(void* callback);
};

class DeviceInbox {
 public:
  DeviceInbox(EventFd wake, std::size_t capacity) : wake_(std::move(wake)), capacity_(capacity) {
    orders_.reserve(capacity);
  }
  DeviceInbox(const DeviceInbox&) = delete;
  DeviceInbox& operator=(const DeviceInbox&) = delete;

  // For as long as this lives. Before work begins.
  DeviceCallback* callback(const DeviceOrder& order) { return &callbacks_.emplace_back(DeviceCallback{this, order}); }
  // Any thread; never blocks for long, calls nothing of CUDA's.
  void post(const DeviceOrder& order) {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      TRIB_ASSERT(orders_.size() < capacity_);
      first = orders_.empty();
      orders_.push_back(order);
    }
    if (first) wake_.notify();
  }
  // The engine's thread. `out` is emptied first; its memory is swapped in, so that nothing is allocated.
  void take(std::vector<DeviceOrder>& out) {
    out.clear();
    out.reserve(capacity_);
    wake_.drain();
    const std::lock_guard lock(mutex_);
    orders_.swap(out);
  }
  const EventFd& wake() const { return wake_; }
  std::size_t capacity() const { return capacity_; }

 private:
  const EventFd wake_;
  const std::size_t capacity_;
  std::deque<DeviceCallback> callbacks_;  // which stay where they are
  std::mutex mutex_;
  std::vector<DeviceOrder> orders_;
};

inline void DeviceCallback::post(void* callback) {
  const auto* record = static_cast<const DeviceCallback*>(callback);
  record->inbox->post(record->order);
}

}  // namespace tributary

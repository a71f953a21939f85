// DeviceInbox: the lanes' orders to a job's device engine, and completions from host callbacks on the devices' streams.
//
// Its bound is exact: a chunk has at most one order of each kind pending, a device one completion per group and
// direction. All-reduce jobs (allreduce_engine.h) use kReduce, kReduced (the weights of the group that `chunk` begins
// are there) and kDelivered.
//
// It owns the arguments of host callbacks. A late callback, from a device that hung, may come after the engine's end:
// the inbox must outlive it (DeviceApi::keep()).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/assert.h"
#include "common/base/ids.h"
#include "common/daemon/command_queue.h"

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

// Argument of a host callback on a stream: the inbox, and the order to post there.
struct DeviceCallback {
  DeviceInbox* inbox = nullptr;
  DeviceOrder order;
  static void post(void* callback);
};

class DeviceInbox {
 public:
  DeviceInbox(EventFd wake, std::size_t bound) : orders_(std::move(wake), bound) {}
  DeviceInbox(const DeviceInbox&) = delete;
  DeviceInbox& operator=(const DeviceInbox&) = delete;

  // The result lives as long as the inbox. Call it before work begins.
  DeviceCallback* callback(const DeviceOrder& order) { return &callbacks_.emplace_back(DeviceCallback{this, order}); }
  // Any thread; never blocks for long, calls nothing of CUDA's.
  void post(const DeviceOrder& order) {
    const bool room = orders_.try_push(order);
    TRIB_ASSERT(room);
  }
  void rouse() { orders_.rouse(); }
  // The engine's thread.
  void take(std::vector<DeviceOrder>& out) { orders_.take(out); }
  int fd() const { return orders_.fd(); }

 private:
  CommandQueue<DeviceOrder> orders_;
  std::deque<DeviceCallback> callbacks_;  // which stay where they are
};

inline void DeviceCallback::post(void* callback) {
  const auto* record = static_cast<const DeviceCallback*>(callback);
  record->inbox->post(record->order);
}

}  // namespace tributary

// StreamPipeline: the base of the engines that drive a job's devices (device_engine.h, allreduce_engine.h). It has the
// streams, events and communicators, the inbox, and the step, which passes completions on, puts work on the streams and
// notices work that makes no progress. It has no thread (device_thread.h). The derived engine decides what is issued
// for a group and what completions mean.
//
// NCCL may put collectives on their streams after its calls have returned. Until it has ("settled"), nothing is issued
// on these streams, because later work on them must come after the collectives; nor is device memory allocated or freed
// (launch_gate.h).
//
// Failure: the first error of any call, asynchronous error or overdue wait aborts every communicator and is reported
// once. Afterwards nothing is issued and no completion is passed on, because an aborted collective leaves no valid sum.
//
// Thread rule: step() and the destructor on one thread at a time; inbox() from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker/device/device_api.h"
#include "worker/device/device_inbox.h"

namespace tributary {

class StreamPipeline {
 public:
  static constexpr std::uint64_t kWatchNs = 100'000'000;  // how often errors and time-outs are looked for
  static constexpr std::uint64_t kIdle = ~0ull;

  virtual ~StreamPipeline() = default;
  StreamPipeline(const StreamPipeline&) = delete;
  StreamPipeline& operator=(const StreamPipeline&) = delete;

  // Handles the inbox and puts the work that is possible on the streams.
  void step(std::uint64_t now_ns);
  // When to call step() again if the inbox stays empty, after a step at `now_ns`; kIdle: not.
  std::uint64_t next_step_ns(std::uint64_t now_ns) const;
  DeviceInbox& inbox() const { return *inbox_; }
  bool failed() const { return failed_; }

  // ---- The end ----
  // Returns whether all streams are empty.
  bool quiet();
  // Aborts every communicator. Nothing is issued any more.
  void abort_collectives();
  // For devices that hang: leaves memory and streams as they are, because work on the streams may still run.
  void abandon();

 protected:
  // orders: bound of the inbox.
  StreamPipeline(DeviceApi& api, std::span<const DeviceIndex> devices, std::uint64_t timeout_ns, EventFd wake,
                 std::size_t orders);

  // ---- What an engine is ----
  virtual void handle(const DeviceOrder& order) = 0;
  // All communicators are connected. May begin_connecting() others.
  virtual Status communicators_ready() { return {}; }
  // The collectives that were called are on their streams.
  virtual Status settled() = 0;
  // Puts the work that is possible on the streams; while settling(), only on streams that have no part in it.
  virtual Status issue() = 0;
  virtual bool under_way() const = 0;
  // Returns too_slow() of work under way that has made no progress for late().
  virtual Status check_progress() = 0;
  virtual void tell_failure(const Error& error) = 0;
  virtual void abandon_memory() = 0;
  virtual std::string describe(std::uint32_t position) const = 0;  // a device, for messages

  // In the engine's destructor, before memory is given back. REQUIRES: quiet(), or abandon() was called.
  void destroy_streams();

  // ---- What it is made of. By position of the device; the labels are for messages and tests ----
  Status add_stream(std::uint32_t position, const char* label, StreamId& stream);
  Status add_event(std::uint32_t position, const char* label, EventId& event);
  void add_communicator(std::uint32_t position, CommId comm);
  // Begins the wait for all communicators, which have `ranks` ranks at most, to connect.
  void begin_connecting(std::uint32_t ranks, LaunchGate::Hold hold = {});
  bool connecting() const { return connecting_; }

  // One NCCL group: `calls` for every device. It is ended whatever happened. Then the collectives are on their streams,
  // or settling().
  Status collectives(const std::function<Status(std::uint32_t position)>& calls);
  bool settling() const { return settling_; }
  // Posts `what` to the inbox when the last record() of `event` has been reached.
  Status tell(StreamId stream, EventId event, DeviceCallback* what);

  std::uint64_t now_ns() const { return now_ns_; }  // of this step
  std::uint64_t settling_since_ns() const { return since_ns_; }
  bool late(std::uint64_t since_ns) const { return now_ns_ - since_ns > timeout_ns_; }
  tl::unexpected<Error> too_slow(const std::string& what, const std::string& where) const;
  std::string devices_in_words(bool unsettled_only) const;

  DeviceApi& api_;

 private:
  struct Device {
    DeviceIndex device;
    std::vector<StreamId> streams;
    std::vector<EventId> events;
    std::vector<CommId> comms;
  };
  Status turn();
  Status settle();
  Result<std::uint32_t> unsettled() const;
  Status fault() const;  // a device's, as an error
  Status watch();

  const std::uint64_t timeout_ns_;
  const std::shared_ptr<DeviceInbox> inbox_;
  std::vector<Device> devices_;      // by position
  std::vector<DeviceOrder> orders_;  // scratch
  bool connecting_ = false, settling_ = false, failed_ = false;
  LaunchGate::Hold launch_;        // while settling
  std::uint32_t ranks_ = 0;        // of the communicators
  std::uint32_t unconnected_ = 0;  // devices' communicators, while connecting
  std::uint64_t since_ns_ = 0;     // since when communicators are waited for, or the last of them connected
  std::uint64_t asked_ns_ = 0;     // when devices were checked for faults
  std::uint64_t now_ns_ = 0;
};

}  // namespace tributary

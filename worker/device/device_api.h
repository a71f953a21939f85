// DeviceApi: the calls of CUDA and NCCL that the node reduction and all-reduce jobs need. Two implementations:
// cuda_device_api.h, and tests/fake_device for machines without GPUs, which checks that the rules below are kept.
//
// Semantics are CUDA's. Work put on a stream starts in order and completes later; calls return at once. Host memory of
// copies must have been pinned here. A Status reports work that could not be started. A later failure makes later calls
// on the device, or a communicator (comm_settled), fail. Every message names device, operation and the library's text.
// Memory is allocated and freed only while no group is half launched: DeviceBlocks ensures that.
//
// Thread rule: any thread; work on one stream, and all communicator calls, from one thread at a time. Host callbacks
// must not call anything of this class.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "kernels/step/optimizer.h"
#include "worker/device/launch_gate.h"

namespace tributary {

using DeviceIndex = StrongId<struct DeviceIndexTag, std::uint32_t>;  // position in DeviceApi::devices()
using StreamId = StrongId<struct StreamTag, std::uint64_t>;
using EventId = StrongId<struct EventTag, std::uint64_t>;
using CommId = StrongId<struct CommTag, std::uint64_t>;  // one device's part of a communicator

struct DeviceInfo {
  std::string name;          // "cuda:0 NVIDIA H200"
  std::string uuid;          // "GPU-..."; what trainers name their device by
  int numa_node = -1;        // -1: unknown, or there is only one
  std::uint64_t memory = 0;  // bytes
};

// A whole allocation, for another process (cudaIpcMemHandle_t).
struct IpcHandle {
  std::array<std::byte, 64> bytes{};
};

// The key by which the ranks of a communicator find each other (ncclUniqueId): made by one process, sent to all.
struct CommKey {
  std::array<std::byte, 128> bytes{};
};
// A rank of a communicator, and the device of this process that has it.
struct CommSeat {
  DeviceIndex device;
  std::uint32_t rank = 0;
};

class DeviceApi {
 public:
  virtual ~DeviceApi() = default;
  virtual const std::vector<DeviceInfo>& devices() const = 0;

  // ---- Memory ----
  // Device memory, zeroed, aligned to 256 bytes at least. kLimit if there is not enough. `purpose` is for messages.
  virtual Result<void*> allocate(DeviceIndex device, std::size_t bytes, const char* purpose) = 0;
  virtual void free(DeviceIndex device, void* memory) = 0;  // REQUIRES: no work that uses it is under way
  // Host memory that copies of every device may touch until unpin(), and go at the link's speed. kLimit if the system
  // pins no more. `purpose` is for messages.
  virtual Status pin(DeviceIndex near, std::span<std::byte> memory, const char* purpose) = 0;
  virtual void unpin(std::span<std::byte> memory) = 0;  // REQUIRES: no work that uses it is under way
  // `memory` as allocate() returned it. Another process opens it through TrainerDevice
  // (session/trainer_device.h), and must have closed it before free().
  virtual Result<IpcHandle> export_memory(DeviceIndex device, void* memory) = 0;

  // ---- Streams and events. Labels are for messages and for tests. ----
  virtual Result<StreamId> create_stream(DeviceIndex device, const char* label) = 0;
  virtual void destroy_stream(StreamId stream) = 0;  // REQUIRES: idle()
  virtual Result<bool> idle(StreamId stream) = 0;    // nothing is under way on it
  virtual Result<EventId> create_event(DeviceIndex device, const char* label) = 0;
  virtual void destroy_event(EventId event) = 0;
  virtual Status record(EventId event, StreamId stream) = 0;
  // Later work on `stream` waits for the event's last record() before this call; none: it does not wait.
  virtual Status wait(StreamId stream, EventId event) = 0;
  virtual Result<bool> reached(EventId event) = 0;  // the last record()

  // ---- Work on a stream ----
  virtual Status copy_to_host(StreamId stream, std::byte* pinned, const void* device, std::size_t bytes) = 0;
  virtual Status copy_to_device(StreamId stream, void* device, const std::byte* pinned, std::size_t bytes) = 0;
  using HostCallback = void (*)(void* context);
  // Runs `callback` on a thread of the library's when all earlier work on the stream is complete.
  virtual Status call_host(StreamId stream, HostCallback callback, void* context) = 0;

  // out[0 .. count) = the tree sum of the inputs (kernels/tree_sum.h), all on the stream's device. out is none of them.
  virtual Status sum(StreamId stream, std::span<const float* const> inputs, std::size_t count, float* out) = 0;
  struct Encode {
    EncodingSpec encoding;                   // any of push but fp32
    std::span<const float* const> inputs;    // summed in tree order
    std::size_t elements = 0;                // of the chunk: all of it
    float scale = 1.0f;                      // of the sum: Encoding::push_scale()
    const float* residual_before = nullptr;  // null unless the encoding keeps one
    float* residual = nullptr;               // after: another array
    std::byte* frame = nullptr;
    std::byte* scratch = nullptr;  // encode_scratch_bytes() of it
  };
  virtual Status encode(StreamId stream, const Encode& work) = 0;
  virtual std::size_t encode_scratch_bytes(EncodingSpec encoding, std::size_t elements, std::size_t inputs) const = 0;
  // Applies a received frame to a chunk of parameters (Encoding::apply).
  virtual Status apply(StreamId stream, EncodingSpec encoding, const std::byte* frame, std::size_t elements,
                       float* parameters) = 0;

  // One step of an optimizer, in place; every pointer of `block` is memory of the stream's device. The optimizer
  // outlives the work.
  virtual Status step(StreamId stream, const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars,
                      const kernels::BlockArgs& block) = 0;

  // ---- Collectives (NCCL) ----
  // One communicator over `devices`, rank i on devices[i], all in this process. Returns before they are usable: ask
  // comm_settled() of each. kNotFound if there is no library.
  virtual Result<std::vector<CommId>> create_comms(std::span<const DeviceIndex> devices) = 0;
  // The ranks that this process has of a communicator of `size`; other processes join with the same key. Otherwise as
  // create_comms(): it settles when all have joined.
  virtual Result<std::vector<CommId>> join_comms(const CommKey& key, std::uint32_t size,
                                                 std::span<const CommSeat> seats) = 0;
  virtual Result<CommKey> make_comm_key() = 0;  // kNotFound if there is no library
  // False: still under way. An error is the communicator's asynchronous one: abort() all of them.
  virtual Result<bool> comm_settled(CommId comm) = 0;
  // Calls for several communicators go between these. After group_end() no stream in it may be used before
  // comm_settled() is true for all of them: until then the work may not be on the streams yet.
  virtual Status group_start() = 0;
  virtual Status group_end() = 0;
  // receive[0 .. count) = values [rank * count, ...) of the sum over all ranks' send[0 .. ranks * count).
  virtual Status reduce_scatter(CommId comm, StreamId stream, const float* send, float* receive, std::size_t count) = 0;
  // gathered[i * count ...) = rank i's part, which lies there already.
  virtual Status all_gather(CommId comm, StreamId stream, float* gathered, std::size_t count) = 0;
  // values[0 .. count) becomes the sum over all ranks' values: the same bits on every rank.
  virtual Status all_reduce(CommId comm, StreamId stream, float* values, std::size_t count) = 0;
  // Stops work that is under way or hangs, and frees the communicator. Call it for all of a set: the others wait.
  virtual void abort(CommId comm) = 0;
  // Closes it cleanly. REQUIRES: nothing under way.
  virtual void destroy(CommId comm) = 0;
  // "NCCL 2.28.9 (libnccl.so.2)" and the settings it was given, or why there is none; for logs and status.
  virtual Result<std::string> collectives_version() = 0;
  virtual std::vector<std::string> collectives_settings() const = 0;  // "NCCL_SOCKET_IFNAME=eth0", sorted

  // ---- For all users of the devices together ----
  LaunchGate& launches() { return launches_; }
  // Keeps, for the life of this object, memory that hung devices, or their late host functions, may still touch.
  void keep(std::shared_ptr<const void> what) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(what));
  }
  // The reason why this process can no longer use its devices; empty: it can. After a fault in a kernel, or the loss of
  // a device, CUDA refuses every call until the process ends. Errors that report this have kUnavailable.
  virtual std::string lost() const = 0;

  // ---- For implementations that check ----
  // The host is about to read (or write) pinned memory.
  virtual void host_access(std::span<const std::byte> /*pinned*/, bool /*write*/) {}

 private:
  LaunchGate launches_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> kept_;
};

// The device's error if a fault has ended the work on these streams (an illegal access, a lost device). After a fault
// no host function runs any more, collectives with that device hang, and only a query reports it.
inline Status fault_on(DeviceApi& api, std::span<const StreamId> streams) {
  for (const StreamId stream : streams) {
    const Result<bool> idle = stream == StreamId() ? Result<bool>(true) : api.idle(stream);
    if (!idle) return tl::unexpected(idle.error());
  }
  return {};
}

// Returns whether nothing runs on these streams. A device that answers with an error works on nothing any more.
inline bool is_quiet(DeviceApi& api, std::span<const StreamId> streams) {
  for (const StreamId stream : streams) {
    if (stream == StreamId()) continue;
    const Result<bool> idle = api.idle(stream);
    if (idle && !*idle) return false;
  }
  return true;
}

}  // namespace tributary

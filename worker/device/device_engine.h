// DeviceEngine: the pipeline (stream_pipeline.h) of one job's node reduction: sums, collectives, encodes, copies,
// decodes, in one order. Orders come in through the inbox, completions go out through DeviceEngineOutput.
// docs/gpu-nodes.md describes streams and events.
//
// A group is issued when all its chunks are there. Per direction at most `ahead` groups are under way; `slots` of them
// have staging memory, the others wait on the device. Deliveries go first, because trainers wait for them.
//
// A gather is issued when the host has learned that its input is there, and not behind an event. NCCL runs the calls of
// a communicator one after another, whatever their streams: a gather that waited for a copy would hold back the sums.
// Groups that are ready at the same time are one NCCL group, because each NCCL group takes a launch, and some tens of
// microseconds to settle. Host functions have streams of their own behind events, because the host's answer takes
// longer than the next copy.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/device/device_memory.h"
#include "worker/device/fixed_queue.h"
#include "worker/device/stream_pipeline.h"

namespace tributary {

struct DeviceEngineOptions {
  std::uint64_t timeout_ns = 30'000'000'000;
  std::uint32_t slots = 4;
  std::uint32_t ahead = 8;
};

// Since the start. A group's time runs from its last chunk's order to its last completion.
struct DeviceTimes {
  std::uint64_t groups_reduced = 0, reduce_ns = 0, groups_delivered = 0, deliver_ns = 0;
};

class DeviceEngineOutput {  // all from step()
 public:
  virtual ~DeviceEngineOutput() = default;
  virtual void chunk_reduced(ChunkIndex chunk) = 0;
  virtual void chunk_delivered(ChunkIndex chunk) = 0;
  virtual void residual_moved(ChunkIndex chunk) = 0;
  virtual void engine_failed(const Error& error) = 0;
};

class DeviceEngine final : public StreamPipeline {
 public:
  // Allocates and connects. The api outlives the engine.
  static Result<std::unique_ptr<DeviceEngine>> create(DeviceApi& api, DevicePlan plan, DeviceEngineOptions options,
                                                      DeviceEngineOutput& output);
  ~DeviceEngine() override { destroy_streams(); }

  const DevicePlan& plan() const { return plan_; }
  DeviceMemory& memory() { return *memory_; }
  // Any thread: nanoseconds in which at least one group was being reduced, and the times of groups.
  std::uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }
  DeviceTimes times() const {
    return {reduce_.groups.load(std::memory_order_relaxed), reduce_.total_ns.load(std::memory_order_relaxed),
            deliver_.groups.load(std::memory_order_relaxed), deliver_.total_ns.load(std::memory_order_relaxed)};
  }

 private:
  struct Ready {
    std::uint32_t group = 0;
    std::uint64_t since_ns = 0;
  };
  struct Issued {
    std::uint32_t group = 0, slot = 0;
    std::uint64_t ready_ns = 0;
    std::uint32_t missing = 0;   // completions
    std::uint32_t arriving = 0;  // deliveries that a gather ends: chunks whose answers are not on their devices yet
    std::uint64_t number = 0;    // in the order of issue, of both directions
  };
  // One direction.
  struct Line {
    Line(const char* call, std::uint32_t all_groups, std::uint32_t ahead)
        : collective(call), ready(all_groups), issued(ahead), waiting(all_groups) {}
    const char* const collective;
    FixedQueue<Ready> ready;
    FixedQueue<Issued> issued;                          // oldest first
    std::vector<std::uint32_t> waiting;                 // by group: chunks that are not there yet
    std::uint64_t count = 0;                            // groups ever issued
    std::uint64_t since_ns = 0;                         // when the oldest one could begin, at the earliest
    std::atomic<std::uint64_t> groups{0}, total_ns{0};  // DeviceTimes
  };
  struct Device {
    StreamId up, out, in, down;
    StreamId told_out, told_in, told_down;  // host functions, when those have come to an event
    CommId comm;
    struct Slot {
      EventId encoded, sent, arrived, decoded;
      EventId scattered, gathered;  // after the collectives: only to find out what hangs
    };
    std::vector<Slot> slots;
    std::vector<std::uint32_t> ranks;
  };
  struct Move {  // of a residual
    ChunkIndex chunk;
    bool to_device = false;
    bool before = false;  // to the host: the one before the round under way
  };

  DeviceEngine(DeviceApi& api, DevicePlan plan, DeviceEngineOptions options, DeviceEngineOutput& output, EventFd wake);
  Status set_up();

  void handle(const DeviceOrder& order) override;
  Status settled() override;
  Status issue() override;
  bool under_way() const override { return !reduce_.issued.empty() || !deliver_.issued.empty() || moving_ != 0; }
  Status check_progress() override;
  void tell_failure(const Error& error) override {
    output_.engine_failed({error.code, "the node reduction on devices failed: " + error.message});
  }
  void abandon_memory() override;
  std::string describe(std::uint32_t position) const override { return plan_.describe(api_, position); }

  void arrived(Line& line, ChunkIndex chunk);
  void completed(Line& line, std::uint32_t group);
  Status begin_reduce();
  Status begin_deliver();
  Issued& begin(Line& line);

  // device_issue.cc: the work on the streams.
  Status scatter();
  Status begin_gather();
  Status finish_reduce(std::uint32_t group, std::uint32_t slot);
  Status finish_deliver(std::uint32_t group, std::uint32_t slot);
  template <class Each>
  Status collectives_of_begun(Each each);
  Result<const void*> encode(std::uint32_t position, ChunkIndex chunk, std::uint32_t slot);
  Status deliver_chunk(std::uint32_t position, ChunkIndex chunk, std::uint32_t slot);
  Status move_residual(const Move& move);
  std::span<const float* const> gradients_of(std::uint32_t position, std::uint32_t group);
  bool copies_directly(ChunkIndex chunk) const;
  Status stuck(const Line& line) const;
  Status collective_is_slow(const Line& line, std::uint32_t group, const std::string& where) const;

  const DevicePlan plan_;
  const DeviceEngineOptions options_;
  DeviceEngineOutput& output_;
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<Device> devices_;
  Line reduce_, deliver_;
  struct ChunkState {
    std::uint64_t weight = 1;                  // of the reduce order under way
    bool with_residual = false, full = false;  // of the orders under way
    bool encoded = false;                      // the reduce order under way, or the last one, has been issued
    bool moving = false;                       // its residual is being copied
    std::uint8_t turn = 0;                     // which residual was written last
  };
  std::vector<ChunkState> chunks_;
  std::vector<DeviceCallback*> reduced_, arrived_, moved_;  // by chunk
  std::vector<DeviceCallback*> delivered_;                  // by group and position
  FixedQueue<std::uint32_t> gathers_;                       // groups whose input is there
  std::vector<const float*> inputs_;                        // scratch, a pointer per rank
  FixedQueue<Issued> begun_;                                // whose collectives are not settled
  const Line* begun_line_ = &reduce_;                       // of them
  FixedQueue<Move> moves_;                                  // of residuals, to be issued
  std::uint32_t moving_ = 0;                                // issued
  std::uint64_t moving_since_ns_ = 0;
  std::uint64_t issued_count_ = 0;
  std::uint64_t busy_since_ns_ = 0;
  std::atomic<std::uint64_t> busy_ns_{0};
};

}  // namespace tributary

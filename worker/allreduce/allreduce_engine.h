// AllreduceEngine: the pipeline (stream_pipeline.h) of one view of an all-reduce job on this node. Its order is the
// same on all nodes: groups of chunks from the last to the first, round by round. allreduce_issue.cc puts the work on
// the streams.
//
//   main  tail to device ─► [sum in node] ─► [sum over nodes] ┐               ┌► step ─► [gather] ┐
//   out                                                       └► tail ─► host ┘                   └► (copies) ─► host
//
// Only sharded jobs have [sum in node] and [gather], which brings the parameters to all devices of the node. Only jobs
// of several members have tails and [sum over nodes]. (copies) to the host: of a chunk that a checkpoint wants.
//
// The step's scale is 1 / total weight, and the host computes a step's scalars: so the tail goes through the host
// between the sum and the step. Meanwhile the next groups' sums are on the stream: up to AllreduceDevices::kSlots
// groups are under way.
//
// Order. All collectives of a device are on one stream: those over nodes in the same order on every node, those in the
// node in the same order on all its devices. So NCCL may serialize collectives anywhere without a circular wait.
//
// Connecting ends with a trial: a whole exchange of zeros in which every member has the weight 1. NCCL's set-up at its
// first send happens then, under the time-out, and a total other than the number of members is an error.
//
// After the trial a wait has no time-out if there are other nodes: it may be a wait for their trainers.
//
// Thread rule: ready() from any thread; everything else on one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/config/job_plan.h"
#include "worker/allreduce/bucket_exchange.h"
#include "worker/allreduce/replica_state.h"
#include "worker/device/allreduce_devices.h"
#include "worker/device/fixed_queue.h"
#include "worker/device/stream_pipeline.h"

namespace tributary {

class AllreduceEngine final : public StreamPipeline {
 public:
  // Streams and events.
  static Result<std::unique_ptr<AllreduceEngine>> create(std::shared_ptr<AllreduceDevices> devices,
                                                         std::shared_ptr<const JobPlan> job, Round start,
                                                         BucketOutput& output);
  ~AllreduceEngine() override { destroy_streams(); }

  const AllreducePlan& plan() const { return devices_->plan(); }
  // Begins to connect: the devices of the node, then the nodes. keys: plan().communicators() of them, if it has any
  // between nodes.
  Status connect(std::span<const CommKey> keys);
  bool connected() const { return tried_; }  // step() until then
  // Loads the values that the view begins with. REQUIRES: connected(), nothing under way. `wait` is called until the
  // copies are done; if it returns false, load() gives up (kStopped).
  using Wait = std::function<bool()>;
  Status load(ReplicaState& state, const Wait& wait);
  // Saves the values that the view ended with: the owners' chunks. REQUIRES: quiet().
  Status save(ReplicaState& state, const Wait& wait);

  // All local ranks are ready with `chunk`, for its next round. At most once until it is stepped.
  void ready(ChunkIndex chunk, const BucketTail& tail);
  // The oldest group under way: its first chunk, its round, and since when.
  struct UnderWay {
    ChunkIndex chunk;
    Round round;
    std::uint64_t since_ns = 0;
  };
  std::optional<UnderWay> oldest() const;

 private:
  enum class Stage : std::uint8_t {
    kSum,       // in the node
    kExchange,  // over nodes
    kCollect,   // the tail
    kTails,     // waits for the tails
    kStep,      // and the parameters to the node's devices
    kFinish,
    kEnd,  // waits for the end of all
  };
  struct Flight {  // a group under way
    std::uint32_t group = 0, slot = 0;
    Round round;
    Stage stage = Stage::kSum;
    bool trial = false;
    std::uint32_t missing = 0;  // callbacks
    std::uint64_t since_ns = 0;
  };
  struct Device {
    StreamId main, out;
    CommId in_node, between;
    std::array<EventId, AllreduceDevices::kSlots> summed, stepped;  // by slot
  };

  AllreduceEngine(std::shared_ptr<AllreduceDevices> devices, std::shared_ptr<const JobPlan> job, Round start,
                  BucketOutput& output, EventFd wake);
  Status set_up();
  void handle(const DeviceOrder& order) override;
  Status communicators_ready() override;
  Status settled() override;
  Status issue() override;
  bool under_way() const override { return !flights_.empty(); }
  Status check_progress() override;
  void tell_failure(const Error& error) override {
    output_.exchange_failed("summing", {error.code, "all-reduce over GPUs failed: " + error.message});
  }
  void abandon_memory() override;
  std::string describe(std::uint32_t position) const override { return devices_->describe(position); }

  Status join_nodes();
  bool next_is_ready() const;
  void begin(bool trial);
  Status advance(Flight& flight);
  void end(const Flight& flight);

  // allreduce_issue.cc: the work on the streams.
  Status sum(const Flight& flight);
  Status exchange(const Flight& flight);
  Status collect(Flight& flight);
  Status step_group(const Flight& flight);
  Status step_chunk(std::uint32_t position, ChunkIndex chunk, const Flight& flight, std::uint64_t total);
  Status finish(Flight& flight);
  Result<std::uint64_t> total_of(std::uint32_t position, const Flight& flight);
  Status move_values(ReplicaState& state, bool to_device, const Wait& wait);
  Status move_chunk(ChunkIndex chunk, ReplicaState& state, bool to_device);
  float* values(std::uint32_t position, const Flight& flight) const;
  ChunkIndex first(const Flight& flight) const { return plan().chunk_of(flight.group, 0); }

  const std::shared_ptr<AllreduceDevices> devices_;
  BucketOutput& output_;
  const std::shared_ptr<const JobPlan> job_;
  std::vector<Device> parts_;         // by position
  std::vector<CommKey> keys_;         // of communicators between nodes that are not begun yet
  std::vector<std::uint64_t> steps_;  // by chunk
  StepRuns runs_;
  std::vector<BucketTail> tails_;                // by chunk: of this node; written before its order
  std::vector<std::uint32_t> ready_;             // by chunk: rounds that all local ranks have been ready for
  std::vector<bool> captured_;                   // by chunk: capture() is owed
  std::vector<DeviceCallback*> summed_, ended_;  // [group * devices + position]
  FixedQueue<Flight> flights_;                   // oldest first
  std::uint32_t settling_slot_ = 0;              // of the flight whose collective is
  std::uint32_t next_group_ = 0;
  std::uint32_t rounds_ = 0;  // begun since the start, all groups but those from next_group_ down
  const Round start_;
  std::uint64_t count_ = 0;  // flights ever begun
  bool tried_ = false;       // the trial has succeeded
};

}  // namespace tributary

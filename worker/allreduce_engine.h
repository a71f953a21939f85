// AllreduceEngine: issues all device work of one view of an all-reduce job on this node, in one order that is the same
// on all nodes: groups of chunks from the last to the first, round by round. The scheduling logic without the thread,
// as device_engine.h; what it puts on the streams is in allreduce_issue.cc.
//
//   main   tail to the device ──► [sum in the node] ─► [sum over nodes] ─┐       step ─► [parameters to the node's
//   devices] ─┐ out                                                 tail to the host ─┴─ host ─┘        (a checkpoint's
//   copies) ─ host ◄─┘
//
// The step's scale is 1 / total weight, and scalars of a step are the host's: so the tail goes through the host
// between the sum and the step. Meanwhile the next groups' sums are on the stream: up to AllreduceDevices::kSlots
// groups are under way.
//
// Order. All collectives of a device are on one stream, those over nodes in the same order on every node, those in the
// node in the same order on all its devices: so whatever NCCL runs one after another somewhere, nothing waits in a
// circle.
//
// Connecting ends with a trial: a whole exchange of zeros in which every member has the weight 1. What NCCL sets up
// when it first sends is set up then, under the time-out, and a total other than the number of members is an error.
//
// After it a wait has no time-out if there are other nodes: it is, as far as anybody here can tell, a wait for their
// trainers. Failure is as device_engine.h has it.
//
// Thread rule: ready() from any thread; everything else on one at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/config.h"
#include "worker/allreduce_devices.h"
#include "worker/device_inbox.h"
#include "worker/fixed_queue.h"
#include "worker/replica_state.h"

namespace tributary {

class AllreduceEngineOutput {  // all from step()
 public:
  virtual ~AllreduceEngineOutput() = default;
  // Is the state of `chunk` after `round` to be kept? Then keep() follows, before stepped().
  virtual bool wants(ChunkIndex chunk, Round round) = 0;
  virtual void keep(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
                    std::uint64_t step) = 0;
  // Another node brought another digest with its gradients of `round`: what to fail with.
  virtual Error replicas_differ(Round round) = 0;
  // The parameters of `chunk` after `round` are where the trainers read them.
  virtual void stepped(ChunkIndex chunk, Round round) = 0;
  virtual void engine_failed(const Error& error) = 0;
};

class AllreduceEngine {
 public:
  static constexpr std::uint64_t kWatchNs = 100'000'000;  // how often errors and time-outs are looked for
  static constexpr std::uint64_t kIdle = ~0ull;

  // Streams and events. kConfigMismatch for an optimizer that we do not have.
  static Result<std::unique_ptr<AllreduceEngine>> create(std::shared_ptr<AllreduceDevices> devices,
                                                         const JobConfig& config, Round start,
                                                         AllreduceEngineOutput& output);
  // REQUIRES: quiet(), or abandon() was called.
  ~AllreduceEngine();
  AllreduceEngine(const AllreduceEngine&) = delete;
  AllreduceEngine& operator=(const AllreduceEngine&) = delete;

  const AllreducePlan& plan() const { return devices_->plan(); }
  DeviceInbox& inbox() { return *inbox_; }
  // Begins to connect. keys: plan().communicators() of them, if it has any between nodes.
  Status connect(std::span<const CommKey> keys);
  bool connected() const { return tried_; }  // step() until then
  // The values that the view begins with. REQUIRES: connected(), nothing under way. `wait` is called until the devices
  // have done what was asked; false: give up (kStopped).
  template <class Wait>
  Status load(ReplicaState& state, Wait wait);
  // And what it ended with: the owners' chunks. REQUIRES: quiet().
  template <class Wait>
  Status save(ReplicaState& state, Wait wait);

  // All local ranks are ready with `chunk`, for its next round. At most once until it is stepped.
  void ready(ChunkIndex chunk, const BucketTail& tail);
  void step(std::uint64_t now_ns);
  // When to call step() again if nothing wakes it, after a step at `now_ns`; kIdle: not.
  std::uint64_t next_step_ns(std::uint64_t now_ns) const;
  bool failed() const { return failed_; }
  // The oldest group under way: its first chunk, its round, and since when.
  struct UnderWay {
    ChunkIndex chunk;
    Round round;
    std::uint64_t since_ns = 0;
  };
  std::optional<UnderWay> oldest() const;

  // ---- The end ----
  bool quiet();
  void abort_collectives();
  // Frees nothing: a device hangs, and what is on its streams may still come.
  void abandon();

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
    std::optional<CommId> in_node, between;
    std::vector<EventId> summed, stepped;  // by slot
    std::array<StreamId, 2> streams() const { return {main, out}; }
  };

  AllreduceEngine(std::shared_ptr<AllreduceDevices> devices, const JobConfig& config,
                  std::unique_ptr<kernels::Optimizer> optimizer, Round start, AllreduceEngineOutput& output,
                  EventFd wake);
  Status set_up();
  void handle(const DeviceOrder& order);
  Status issue();
  bool next_is_ready() const;
  void begin(bool trial);
  Status advance(Flight& flight);
  void end(const Flight& flight);
  Result<std::uint32_t> unsettled();
  Status watch();
  void fail_with(const Error& error);
  std::string where(const Flight& flight) const;

  // allreduce_issue.cc: what is put on the streams.
  Status sum(const Flight& flight);
  Status exchange(const Flight& flight);
  Status collect(Flight& flight);
  Status step_group(const Flight& flight);
  Status step_chunk(std::uint32_t position, ChunkIndex chunk, const Flight& flight, std::uint64_t total);
  Status finish(Flight& flight);
  Result<std::uint64_t> total_of(std::uint32_t position, const Flight& flight);
  Status move_chunk(ChunkIndex chunk, ReplicaState& state, bool to_device);
  void land_chunk(ChunkIndex chunk, ReplicaState& state);
  float* values(std::uint32_t position, const Flight& flight) const;
  ChunkIndex first(const Flight& flight) const { return plan().chunk_of(flight.group, 0); }
  template <class Each>
  Status in_group(Each each);

  const std::shared_ptr<AllreduceDevices> devices_;
  DeviceApi& api_;
  AllreduceEngineOutput& output_;
  const std::shared_ptr<kernels::Optimizer> optimizer_;
  const double lr_;
  const ScheduleConfig schedule_;
  const std::shared_ptr<DeviceInbox> inbox_;
  std::vector<Device> parts_;                    // by position
  std::vector<std::uint64_t> steps_;             // by chunk
  std::vector<BucketTail> tails_;                // by chunk: of this node; written before its order
  std::vector<std::uint32_t> ready_;             // by chunk: rounds that all local ranks have been ready for
  std::vector<bool> kept_;                       // by chunk: keep() is owed
  std::vector<DeviceCallback*> summed_, ended_;  // [group * devices + position]
  std::vector<DeviceOrder> orders_;              // scratch
  FixedQueue<Flight> flights_;                   // oldest first
  std::optional<std::uint32_t> settling_;        // slot of the flight whose collective is not on its streams yet
  LaunchGate::Hold launch_;                      // until it is
  std::uint32_t next_group_ = 0;
  std::uint32_t rounds_ = 0;  // begun since the start, all groups but those from next_group_ down
  const Round start_;
  std::uint64_t count_ = 0;  // flights ever begun
  bool connecting_ = false, tried_ = false, failed_ = false, devices_lost_ = false;
  std::uint64_t since_ns_ = 0;     // since when communicators are waited for, or the last of them connected
  std::uint32_t unconnected_ = 0;  // devices' communicators, while connecting
  std::uint64_t asked_ns_ = 0;     // when devices were asked for faults
  std::uint64_t now_ns_ = 0;
};

template <class Wait>
Status AllreduceEngine::load(ReplicaState& state, Wait wait) {
  for (std::uint32_t c = 0; c < plan().chunks(); ++c) {
    if (Status moved = move_chunk(ChunkIndex(c), state, true); !moved) return moved;
    while (!quiet()) {
      if (!wait()) return fail(ErrorCode::kStopped, "the view is over");
    }
  }
  steps_.assign(state.steps().begin(), state.steps().end());
  return {};
}

template <class Wait>
Status AllreduceEngine::save(ReplicaState& state, Wait wait) {
  for (std::uint32_t c = 0; c < plan().chunks(); ++c) {
    if (Status moved = move_chunk(ChunkIndex(c), state, false); !moved) return moved;
    while (!quiet()) {
      if (!wait()) return fail(ErrorCode::kStopped, "the view is over");
    }
    land_chunk(ChunkIndex(c), state);
  }
  return {};
}

}  // namespace tributary

// The node reduction on devices. DeviceReduction is one job's, with the engine and its thread; DeviceReducer is each
// worker lane's part of it, a NodeReducer like any other.
//
//   lane: reduce(), deliver() ──inbox──► engine's thread ──streams──► host callback ──inbox──► engine's thread
//   lane: poll() ◄──queue and eventfd of the lane── engine's thread
//
// Completions go through the engine's thread, and not from the callback to the lane: the thread first asks NCCL for
// asynchronous errors, because a failed collective must not become a push.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/daemon/log.h"
#include "worker/device/device_engine.h"
#include "worker/device/device_loan.h"
#include "worker/device/device_thread.h"
#include "worker/reduce/node_reducer.h"
#include "worker/reduce/redo_ring.h"

namespace tributary {

struct DeviceReductionOptions {
  DeviceEngineOptions engine;
  // For tests, which have no thread: called instead of waiting for the devices, and does some of their work.
  std::function<void()> pump;
};

class DeviceReduction final : public DeviceLender, private DeviceEngineOutput {
 public:
  // Allocates everything; errors as DeviceEngine::create(). Without a pump it starts its thread.
  static Result<std::shared_ptr<DeviceReduction>> create(std::shared_ptr<DeviceApi> api, DevicePlan plan,
                                                         DeviceReductionOptions options, Logger logger);
  // Waits for work under way. Trainers must have closed the memory that they were lent.
  ~DeviceReduction() override = default;
  DeviceReduction(const DeviceReduction&) = delete;
  DeviceReduction& operator=(const DeviceReduction&) = delete;

  const DevicePlan& plan() const { return engine_->plan(); }
  DeviceTimes times() const { return engine_->times(); }
  std::uint32_t width() const override { return plan().width(); }
  std::string describe(std::uint32_t position) const override { return plan().describe(*api_, position); }
  const DeviceMemory& memory() const { return engine_->memory(); }
  const DeviceLoan& loan(std::uint32_t rank) const override { return loans_[rank]; }
  std::uint64_t pinned_bytes() const override { return DeviceMemory::pinned_bytes(plan()); }
  // With a pump: does the thread's work.
  void step(std::uint64_t now_ns) { engine_->step(now_ns); }
  std::uint64_t next_step_ns(std::uint64_t now_ns) const { return engine_->next_step_ns(now_ns); }

 private:
  friend class DeviceReducer;
  struct Event {
    enum class Kind : std::uint8_t { kReduced, kDelivered, kResidualMoved, kFailed };
    Kind kind = Kind::kReduced;
    ChunkIndex chunk;
  };
  using Port = CommandQueue<Event>;  // of one lane. Its bound: an event per chunk and kind

  DeviceReduction(std::shared_ptr<DeviceApi> api, DeviceReductionOptions options, Logger logger)
      : api_(std::move(api)), options_(std::move(options)), logger_(std::move(logger)) {}
  Status make_loans();

  Result<Port*> add_port(const LaneChunks& chunks);
  Error error() const;
  std::size_t ports() const;
  void wait_for(const Port& port) const;  // until it may have events

  void chunk_reduced(ChunkIndex chunk) override { ports_by_chunk_[chunk.value]->push({Event::Kind::kReduced, chunk}); }
  void chunk_delivered(ChunkIndex chunk) override {
    ports_by_chunk_[chunk.value]->push({Event::Kind::kDelivered, chunk});
  }
  void residual_moved(ChunkIndex chunk) override {
    ports_by_chunk_[chunk.value]->push({Event::Kind::kResidualMoved, chunk});
  }
  void engine_failed(const Error& error) override;

  const std::shared_ptr<DeviceApi> api_;
  const DeviceReductionOptions options_;
  Logger logger_;
  std::unique_ptr<DeviceEngine> engine_;
  std::vector<DeviceLoan> loans_;  // by rank
  // A chunk's is written before its first order and read after it.
  std::vector<Port*> ports_by_chunk_;
  mutable std::mutex mutex_;  // guards ports_ and error_
  std::vector<std::unique_ptr<Port>> ports_;
  Error error_;
  std::atomic<bool> failed_{false};
  std::optional<DeviceThread> thread_;  // from create() on; last, because it ends the devices' work
};

class DeviceReducer final : public NodeReducer {
 public:
  // chunks: this lane's, which outlive this. kIo if there are no more file descriptors.
  // ring: gets a copy of each frame and residual, for servers that are lost; null: nothing is kept.
  static Result<std::unique_ptr<DeviceReducer>> create(std::shared_ptr<DeviceReduction> reduction, LaneChunks& chunks,
                                                       ReduceListener& listener, std::shared_ptr<RedoRing> ring = {});

  void reduce(LaneChunk& chunk, bool with_residual) override;
  void deliver(LaneChunk& chunk, Version version, bool full, std::span<const std::byte> payload) override;
  void release(LaneChunk& chunk) override;
  void restore_residual(LaneChunk& chunk, std::span<const std::byte> values) override;
  // Waits for its copy. Empty: the devices have failed, as reducer_failed() reports.
  std::span<const std::byte> residual(const LaneChunk& chunk) override;
  std::vector<const SharedMemory*> frames() const override;
  bool poll() override;
  int wake_fd() const override { return port_.fd(); }
  // This lane's part of the time in which the job's devices reduced.
  std::uint64_t busy_ns() const override;

 private:
  using Event = DeviceReduction::Event;
  struct Work {
    Version version;  // being delivered
    bool with_residual = false;
    bool open = false;        // between reduce() and release()
    bool delivering = false;  // between deliver() and delivered()
    bool fetched = false;     // its residual is in pinned memory
    std::uint8_t moves = 0;   // of its residual, under way
  };

  DeviceReducer(std::shared_ptr<DeviceReduction> reduction, DeviceReduction::Port& port, LaneChunks& chunks,
                ReduceListener& listener, std::shared_ptr<RedoRing> ring);
  bool keeps_residual() const { return reduction_->plan().push->keeps_residual(); }
  void begin_residual(const LaneChunk& chunk);
  std::byte* kept_residual(const LaneChunk& chunk, Round round) const;             // in the ring
  void move_to_device(const LaneChunk& chunk, std::span<const std::byte> values);  // a residual
  void keep_residual(const LaneChunk& chunk, std::span<const std::byte> values);
  void keep(const LaneChunk& chunk);
  void post(DeviceOrder::Kind kind, const LaneChunk& chunk, bool flag, std::uint64_t weight = 0);
  void handle(const Event& event);

  const std::shared_ptr<DeviceReduction> reduction_;
  DeviceReduction::Port& port_;
  ReduceListener& listener_;
  const std::shared_ptr<RedoRing> ring_;
  LaneChunks& chunks_;
  std::vector<Work> work_;             // by LaneChunk::place
  std::vector<Event> events_, early_;  // scratch; taken while waiting for a residual
  std::size_t under_way_ = 0;
};

}  // namespace tributary

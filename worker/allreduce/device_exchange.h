// DeviceExchange: the AllreduceEngine of one view with its thread, for AllreduceJob.
//
//   conductor: connect() ─ load() ─ start() ............ stop() ─ save()
//   lane:                            ready() ... ready()
//   engine's thread:                 wants(), keep(), stepped(), engine_failed()
//
// Thread rule: the conductor's thread; ready() and give_up() from any.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/daemon/log.h"
#include "worker/allreduce/allreduce_engine.h"
#include "worker/device/device_thread.h"

namespace tributary {

class DeviceExchange final : private AllreduceEngineOutput {
 public:
  static constexpr std::uint64_t kNoticeMs = 30'000;  // of waiting for other nodes, until it is logged

  // config: the job's. output: for what happens after start(), on the engine's thread.
  static Result<std::unique_ptr<DeviceExchange>> create(std::shared_ptr<AllreduceDevices> devices,
                                                        const JobConfig& config, Round start,
                                                        AllreduceEngineOutput& output, Logger logger);
  ~DeviceExchange() override { stop(); }
  DeviceExchange(const DeviceExchange&) = delete;
  DeviceExchange& operator=(const DeviceExchange&) = delete;

  // Blocks until all members have exchanged something (allreduce_engine.h), for the devices' time-out at most.
  Status connect(std::span<const CommKey> keys);
  Status load(ReplicaState& state);
  void start();
  void ready(ChunkIndex chunk, const BucketTail& tail) { engine_->ready(chunk, tail); }
  // Whoever waits in connect() or load() is woken, and nothing is issued any more.
  void give_up() { thread_->give_up(); }
  // Aborts what is under way and waits for the devices. Once is enough.
  void stop();
  Status save(ReplicaState& state);

 private:
  DeviceExchange(std::string job, AllreduceEngineOutput& output, Logger logger)
      : job_(std::move(job)), output_(output), logger_(std::move(logger)) {}
  void notice(std::uint64_t now_ns);

  bool wants(ChunkIndex chunk, Round round) override { return output_.wants(chunk, round); }
  void keep(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
            std::uint64_t step) override {
    output_.keep(chunk, round, parameters, state, step);
  }
  Error replicas_differ(Round round) override { return output_.replicas_differ(round); }
  void stepped(ChunkIndex chunk, Round round) override { output_.stepped(chunk, round); }
  void engine_failed(const Error& error) override;

  const std::string job_;
  AllreduceEngineOutput& output_;
  const Logger logger_;
  std::unique_ptr<AllreduceEngine> engine_;
  Error error_;                   // before start()
  std::uint64_t noticed_ns_ = 0;  // since when the group waited that the log has told of
  bool started_ = false, stopped_ = false;
  std::optional<DeviceThread> thread_;  // from create() on; last, because it ends the devices' work
};

}  // namespace tributary

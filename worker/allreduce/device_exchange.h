// DeviceExchange: sums a view's buckets in GPU memory: an AllreduceEngine with its thread.
//
// The thread calls BucketOutput from start() to stop(). An abrupt close() also wakes a caller in connect() or load(),
// and nothing is issued any more.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/daemon/log.h"
#include "worker/allreduce/allreduce_engine.h"
#include "worker/allreduce/bucket_exchange.h"
#include "worker/device/device_thread.h"

namespace tributary {

class DeviceExchange final : public BucketExchange, private BucketOutput {
 public:
  // output: gets the events after start(). It and the view outlive this.
  DeviceExchange(std::shared_ptr<AllreduceDevices> devices, const ViewPlan& view, BucketOutput& output, Logger logger)
      : devices_(std::move(devices)), view_(view), output_(output), logger_(std::move(logger)) {}
  ~DeviceExchange() override {
    stop([] {});
  }

  // Node 0 makes and publishes the keys of the communicators between nodes.
  Status open(std::shared_ptr<GlooDevice> device, Addresses& mine) override;
  std::size_t address_count(std::uint32_t node) const override;
  Status connect(ViewProgress& view) override;
  // Blocks until all members have exchanged something (allreduce_engine.h), for the devices' time-out at most.
  Status connect(std::span<const CommKey> keys);
  Status load(ReplicaState& state) override;
  void start() override;
  // Aborts work under way and waits for the devices. Once is enough.
  void stop(const std::function<void()>& meet) override;
  Status save(ReplicaState& state) override;
  void ready(ChunkIndex chunk, Round /*round*/, const BucketTail& tail) override { engine_->ready(chunk, tail); }
  void close(bool clean) override;

 private:
  void notice_oldest(std::uint64_t now_ns);

  SaidSettings settings(ChunkIndex chunk) const override { return output_.settings(chunk); }
  bool wants(ChunkIndex chunk, Round round) override { return output_.wants(chunk, round); }
  void capture(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
               std::uint64_t step) override {
    output_.capture(chunk, round, parameters, state, step);
  }
  Error replicas_differ(Round round) override { return output_.replicas_differ(round); }
  void stepped(ChunkIndex chunk, Round round) override { output_.stepped(chunk, round); }
  void exchange_failed(const std::string& doing, const Error& error) override;

  const std::shared_ptr<AllreduceDevices> devices_;
  const ViewPlan& view_;
  BucketOutput& output_;
  const Logger logger_;
  std::unique_ptr<AllreduceEngine> engine_;
  Error error_;                   // before start()
  std::uint64_t noticed_ns_ = 0;  // since when the group that was last logged has waited
  bool started_ = false, stopped_ = false;
  std::optional<DeviceThread> thread_;  // from open() on; last, because it ends the devices' work
};

}  // namespace tributary

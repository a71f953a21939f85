// BucketExchange: sums the buckets of one view over all nodes and steps them: HostExchange in host memory over Gloo,
// DeviceExchange in GPU memory over NCCL. Owned by AllreduceJob.
//
//   conductor    open() ─ begin_connecting() ─ connect() ─ load() ─ start() ............ stop() ─ save()
//   lane                                                      ready() ... ready() ... close()
//   its threads                                                   BucketOutput's
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/allreduce/replica_state.h"
#include "worker/allreduce/view_progress.h"
#include "worker/device/bucket_tail.h"

namespace tributary {

// Receives the exchange's results, on the exchange's threads, one at a time for a chunk.
class BucketOutput {
 public:
  virtual ~BucketOutput() = default;
  // The ranks' settings for the step that is due.
  virtual SaidSettings settings(ChunkIndex chunk) const = 0;
  // Returns whether the state of `chunk` after `round` is to be copied. If so, capture() follows, before stepped().
  virtual bool wants(ChunkIndex chunk, Round round) = 0;
  virtual void capture(ChunkIndex chunk, Round round, const float* parameters, std::span<const float* const> state,
                       std::uint64_t step) = 0;
  // Returns the error for another node's different digest with its gradients of `round`.
  virtual Error replicas_differ(Round round) = 0;
  // The parameters of `chunk` after `round` have been written where the trainers read them.
  virtual void stepped(ChunkIndex chunk, Round round) = 0;
  virtual void exchange_failed(const std::string& doing, const Error& error) = 0;
};

class GlooDevice;

class BucketExchange {
 public:
  static constexpr std::uint64_t kNoticeMs = 30'000;  // of waiting for other nodes, until it is logged

  BucketExchange() = default;
  virtual ~BucketExchange() = default;
  BucketExchange(const BucketExchange&) = delete;
  BucketExchange& operator=(const BucketExchange&) = delete;

  // ---- The conductor's thread ----

  // Appends this node's addresses. device: the control ring's; null if there is one node.
  virtual Status open(std::shared_ptr<GlooDevice> device, Addresses& mine) = 0;
  virtual std::size_t address_count(std::uint32_t node) const = 0;  // that `node` publishes
  virtual void begin_connecting() {}  // does its part while the control ring is being connected
  virtual Status connect(ViewProgress& view) = 0;
  // Copy the view's first values from `state`, and its last ones to it, if they are not stepped in `state` itself.
  virtual Status load(ReplicaState& /*state*/) { return {}; }
  virtual Status save(ReplicaState& /*state*/) { return {}; }
  virtual void start() {}
  // Stops the exchange: nothing is under way afterwards. `meet` waits until all nodes have called stop(); it is called
  // where this node cannot see what it still forwards for others. REQUIRES: the view is closed.
  virtual void stop(const std::function<void()>& meet) = 0;

  // ---- Any thread. REQUIRES: ViewProgress's lock ----

  // All local ranks are ready with `chunk`. At most once until it is stepped.
  virtual void ready(ChunkIndex chunk, Round round, const BucketTail& tail) = 0;
  // Logs waits that take too long; called every now and then.
  virtual void notice(std::uint64_t /*now_ms*/) {}
  // Wakes threads that wait for other nodes. In a clean close, work under way that others may need continues until
  // stop().
  virtual void close(bool clean) = 0;
};

}  // namespace tributary

// WorkerLaneJob: one job on one worker lane, all but its sockets: from tensors that become ready to pushes, and from
// answers to parameters that trainers see. Hands each chunk (LaneChunk) from stage to stage (NodeGather, NodeReducer,
// ClientCore), and connects them to the node's shared memory. The lane (worker/node/lane.cc) and the simulator drive
// this class. Thread rule: the lane's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/security/keys.h"
#include "worker/node/client_core.h"
#include "worker/node/job.h"
#include "worker/node/lane_trace.h"
#include "worker/node/pace_meter.h"
#include "worker/reduce/host_reducer.h"
#include "worker/reduce/node_gather.h"

namespace tributary {

struct WorkerLaneOptions {
  std::uint16_t index = 0;
  std::uint16_t lanes = 1;
  std::uint64_t window_cap_bytes = 16u << 20;
  bool local_links = true;                       // share memory with servers on this machine
  std::shared_ptr<const KeyPair> own = nullptr;  // null: there are no keys
  std::uint64_t stop_timeout_ms = 30'000;  // what is owed to servers is given up when they take none of it for so long
};

class WorkerLaneOutput {
 public:
  virtual ~WorkerLaneOutput() = default;
  virtual std::uint64_t now_ns() const = 0;
  // False: not taken. A full queue and a lost message look the same to ClientCore, whose time-outs repeat both.
  // payload: empty, or lies in the node's memory: a push's until its answer, initial values until theirs.
  virtual bool send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload) = 0;
  // A line for the log; servers can cause as many as they like.
  virtual void refused(const std::string& line) = 0;
  // Once.
  virtual void failed(LaneFailure failure) = 0;
};

class WorkerLaneJob final : private ClientOutput, private ReduceListener {
 public:
  // kLimit without memory for frames; errors of devices.
  static Result<std::unique_ptr<WorkerLaneJob>> open(std::shared_ptr<NodeJob> job, const WorkerLaneOptions& options,
                                                     WorkerLaneOutput& output);

  const std::shared_ptr<NodeJob>& job() const { return job_; }
  const LaneChunks& chunks() const { return chunks_; }
  const NodeReducer& reducer() const { return *reducer_; }
  const ClientCore& client() const { return client_; }
  bool failed() const { return failed_; }

  // Payloads of this connection lie in memory shared with its server, while others' cross the network. Before start().
  void crosses_no_link(ConnectionIndex connection) { client_.crosses_no_link(connection); }
  // Connections can be used.
  void start();
  // The initial values lie in the node's memory. Before or after start().
  void initial_values();

  // `payload` can be read during the call.
  void receive(const DataMessage& message, std::span<const std::byte> payload);
  // Handles the reductions that devices have completed since the last call.
  void poll_reducer() { reducer_->poll(); }
  // Looks for tensors that became ready.
  void scan();
  // Makes what was received and sent since the last call known to trainers. True if they have something to look for.
  bool publish();
  // Time-outs, and what status shows.
  void tick();
  // Records its actions into `buffer` from now on; null: no more.
  void trace(std::shared_ptr<TraceBuffer> buffer);

  // The view ended cleanly: residuals, if the job's push encoding keeps any, go to the servers.
  // True if there is something to wait for; kept() when it is done.
  bool keep_residuals();
  bool kept() const { return failed_ || client_.residuals_kept(); }
  std::uint64_t residuals_kept() const { return client_.kept_chunks(); }  // so far
  std::uint64_t heard() const { return client_.stats().heard; }           // grows while servers send anything

 private:
  WorkerLaneJob(std::shared_ptr<NodeJob> job, const WorkerLaneOptions& options, WorkerLaneOutput& output);
  void fail_job(LaneFailure failure);

  void send(const LaneChunk& chunk, const DataMessage& message, std::span<const std::byte> payload) override;
  std::optional<RedoRing::Frame> kept(const LaneChunk& chunk, Round round) override;
  std::span<const std::byte> residual(const LaneChunk& chunk) override { return reducer_->residual(chunk); }
  std::span<const std::byte> initial_values(const LaneChunk& chunk) override;
  Checksum128::Value have_earlier(const LaneChunk& chunk) override;
  void answered(LaneChunk& chunk, const Answer& answer, bool whole, std::span<const std::byte> payload) override;
  void residual_restored(LaneChunk& chunk, std::span<const std::byte> values) override;
  void refused(const ErrorReply& error) override;
  void reduced(LaneChunk& chunk) override;
  void delivered(LaneChunk& chunk, Version version) override;
  void reducer_failed(Error error) override;

  const std::shared_ptr<NodeJob> job_;
  LaneJobStats& counts_;  // of job_
  WorkerLaneOutput& output_;
  LaneChunks chunks_;
  NodeGather gather_;
  PaceMeter pace_;
  std::unique_ptr<NodeReducer> reducer_;
  std::unique_ptr<WorkerLaneTrace> trace_;     // null: nothing is traced
  std::shared_ptr<const NodeRegion> earlier_;  // null: this view has what it needs of it, or there is none
  ClientCore client_;
  bool started_ = false;
  bool initial_values_wait_ = false;  // for start()
  std::vector<LaneChunk*> complete_;  // scratch
  struct Told {
    std::uint64_t reduce_ns = 0, pushed = 0, pulled = 0;
  };
  Told told_;                                                        // in the node's header, by the last publish()
  std::uint64_t pulls_ = 0, staleness_sum_ = 0, staleness_max_ = 0;  // since the last publish()
  bool answered_some_ = false;
  bool failed_ = false;
};

}  // namespace tributary

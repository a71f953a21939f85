// WorkerLaneJob: one job on one worker lane, all but its sockets: from tensors that become ready to pushes, and from
// answers to parameters that trainers see. On a node chunks have the numbers of its part of the layout; messages name
// them as the whole layout does, and this class translates. Connects the cores (NodeGather, NodeReducer, ClientCore) to
// each other and to the node's shared memory. The lane (through worker/node/job_connections.h) and the simulator drive
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
#include "worker/node/lane_listener.h"
#include "worker/node/lane_trace.h"
#include "worker/node/pace_meter.h"
#include "worker/node/ready_scan.h"
#include "worker/reduce/host_reducer.h"
#include "worker/reduce/node_gather.h"

namespace tributary {

// A worker lane's part of a layout: the server lanes l with l % lanes == index, a connection to each.
struct LaneChunks {
  std::vector<ChunkIndex> chunks;            // ascending
  std::vector<ConnectionIndex> connections;  // of each of them
  std::vector<ChunkOwner> owners;            // by connection

  static LaneChunks of(const Layout& layout, std::uint16_t index, std::uint16_t lanes);
};

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
  static Result<std::unique_ptr<WorkerLaneJob>> open(std::shared_ptr<NodeJob> job, const LaneChunks& lane,
                                                     const WorkerLaneOptions& options, WorkerLaneOutput& output);

  const std::shared_ptr<NodeJob>& job() const { return job_; }
  const NodeReducer& reducer() const { return *reducer_; }
  const ClientCore& client() const { return client_; }
  bool failed() const { return failed_; }

  // Payloads of this connection lie in memory shared with its server, while others' cross the network. Before start().
  void crosses_no_link(ConnectionIndex connection) { client_.crosses_no_link(connection); }
  // Connections can be used.
  void start();
  // The initial values lie in the node's memory. Before or after start().
  void initial_values();

  // From connection `from`; `payload` can be read during the call.
  void receive(ConnectionIndex from, const DataMessage& message, std::span<const std::byte> payload);
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
  WorkerLaneJob(std::shared_ptr<NodeJob> job, const LaneChunks& lane, const WorkerLaneOptions& options,
                WorkerLaneOutput& output);
  void fail_job(LaneFailure failure);
  std::optional<RedoRing::Frame> kept_frame(ChunkIndex chunk, Round round);
  void send(ConnectionIndex connection, DataMessage message, std::span<const std::byte> payload = {});
  void hear(ConnectionIndex from, const DataMessage& message, std::span<const std::byte> payload);

  void send_push(ConnectionIndex connection, Push push) override;
  void send_init(ConnectionIndex connection, const Init& init) override;
  void send_pull(ConnectionIndex connection, const Pull& pull) override { send(connection, pull); }
  void send_query(ConnectionIndex connection, const Query& query) override { send(connection, query); }
  Checksum128::Value have_earlier(ChunkIndex chunk) override;
  void answered(const Answer& answer, bool whole, std::span<const std::byte> payload) override;
  void residual_restored(ChunkIndex chunk, std::span<const std::byte> values) override;
  void refused(const ErrorReply& error) override;
  void reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> payload) override;
  void delivered(ChunkIndex chunk, Version version) override;
  void reducer_failed(Error error) override;

  const std::shared_ptr<NodeJob> job_;
  LaneJobStats& counts_;  // of job_
  WorkerLaneOutput& output_;
  NodeGather gather_;
  PaceMeter pace_;
  std::unique_ptr<NodeReducer> reducer_;
  std::unique_ptr<WorkerLaneTrace> trace_;     // null: nothing is traced
  std::shared_ptr<const NodeRegion> earlier_;  // null: this view has what it needs of it, or there is none
  ClientCore client_;
  bool started_ = false;
  bool initial_values_wait_ = false;                // for start()
  std::vector<std::span<const std::byte>> frames_;  // by chunk index: the payload of the push under way
  ReadyScan ready_;
  std::vector<NodeGather::Complete> complete_;  // scratch
  struct Told {
    std::uint64_t reduce_ns = 0, pushed = 0, pulled = 0;
  };
  Told told_;                                                        // in the node's header, by the last publish()
  std::uint64_t pulls_ = 0, staleness_sum_ = 0, staleness_max_ = 0;  // since the last publish()
  bool answered_some_ = false;
  bool failed_ = false;
};

}  // namespace tributary

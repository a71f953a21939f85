// WorkerLaneJob: one job on one worker lane. Connects the cores (NodeGather, NodeReducer, ClientCore) to the job's
// sockets and shared memory. Thread rule: the lane's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/log.h"
#include "common/zmq_util.h"
#include "worker/client_core.h"
#include "worker/frame_copies.h"
#include "worker/host_reducer.h"
#include "worker/job.h"
#include "worker/lane.h"
#include "worker/lane_link.h"
#include "worker/node_gather.h"
#include "worker/pace_meter.h"

namespace tributary {

class WorkerLaneJob final : private ClientOutput, private ReduceListener {
 public:
  // kUnavailable if an endpoint cannot be used.
  static Result<std::unique_ptr<WorkerLaneJob>> open(std::shared_ptr<NodeJob> job, const WorkerLaneOptions& options,
                                                     zmq::context_t& context, WorkerLaneListener& listener,
                                                     Logger logger);
  ~WorkerLaneJob() override;  // REQUIRES: closed() or the context is closed

  const std::shared_ptr<NodeJob>& job() const { return job_; }
  void add_poll_items(std::vector<zmq::pollitem_t>& items);

  // Held until close().
  void hold(RedoRing::Use ring) { ring_use_ = std::move(ring); }

  // Takes what servers on this machine say to the wish to share memory; when all have, the job begins.
  void settle_links(std::uint64_t now_ns);
  void initial_values(std::uint64_t now_ns);
  // Up to `batch` messages per connection. True if a connection may have more.
  bool receive(int batch);
  // What devices have completed since.
  void poll_reducer() { reducer_->poll(); }
  // Looks for tensors that became ready.
  void scan();
  // Makes what was received and sent since the last call known to trainers and status.
  void publish();
  void tick(std::uint64_t now_ns);
  // Closes the sockets; then outstanding() falls to 0 when ZeroMQ's I/O thread is done.
  void close();
  std::uint64_t outstanding() const { return lent_.outstanding(); }

  // The view ended in good order: residuals, if the job's push encoding keeps any, go to the servers before close().
  // True if there is something to wait for; kept() when it is done.
  bool keep_residuals(std::uint64_t now_ns);
  bool kept() const { return failed_ || client_.residuals_kept(); }
  std::uint64_t residuals_kept() const { return client_.kept_chunks(); }  // so far

 private:
  WorkerLaneJob(std::shared_ptr<NodeJob> job, const WorkerLaneOptions& options, std::vector<ChunkIndex> chunks,
                std::vector<ConnectionIndex> connections, std::uint16_t connection_count, WorkerLaneListener& listener,
                Logger logger);
  Status connect(zmq::context_t& context, const std::vector<ChunkOwner>& owners);
  void ask_links(const std::vector<ChunkOwner>& owners, std::uint64_t now_ns);
  Result<std::vector<const SharedMemory*>> regions();
  void not_shared(std::size_t connection, const Error& why);
  void receive_message(ConnectionIndex from, zmq::message_t& header, zmq::message_t& frame, int frames);
  void fail_job(LaneFailure failure);
  std::optional<RedoRing::Frame> kept_frame(ChunkIndex chunk, Round round);
  void send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload = {});

  void send_push(ConnectionIndex connection, const Push& push) override;
  std::uint64_t kept_weight(ChunkIndex chunk, Round round) override;
  GateDecision kept_decision(ChunkIndex chunk, Round round) override;
  void send_init(ConnectionIndex connection, const Init& init) override;
  void send_pull(ConnectionIndex connection, const Pull& pull) override;
  void send_query(ConnectionIndex connection, const Query& query) override;
  void answered(const Answer& answer, bool whole, std::span<const std::byte> payload) override;
  void residual_restored(ChunkIndex chunk, std::span<const std::byte> values) override;
  void refused(const ErrorReply& error) override;
  void reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> payload) override;
  void delivered(ChunkIndex chunk, Version version) override;
  void reducer_failed(Error error) override;

  const std::shared_ptr<NodeJob> job_;
  const std::uint16_t lane_;
  const std::vector<ChunkIndex> chunks_;
  WorkerLaneListener& listener_;
  Logger logger_;
  RateLimitedLog noise_;
  LentMemory lent_;  // of all sockets
  NodeGather gather_;
  PaceMeter pace_;
  std::unique_ptr<NodeReducer> reducer_;
  ClientCore client_;
  std::vector<zmq::socket_t> sockets_;              // by connection
  std::vector<LaneLink> links_;                     // by connection
  std::vector<ChunkOwner> servers_;                 // by connection
  FrameCopies copies_;                              // allocated if links want them
  bool settled_ = false;                            // no link is waited for; client_ has started
  bool initial_values_wait_ = false;                // for that
  std::vector<std::span<const std::byte>> frames_;  // by chunk index: the payload of the push under way
  std::vector<std::uint64_t> seen_;                 // [rank * tensors + i]: round last seen of gather_.tensors()[i]
  std::vector<NodeGather::Complete> complete_;      // scratch
  std::uint64_t reported_reduce_ns_ = 0, reported_pushed_ = 0, reported_pulled_ = 0;
  std::uint64_t socket_payload_bytes_ = 0, shared_payload_bytes_ = 0;
  std::uint64_t bytes_sent_ = 0, malformed_ = 0, send_failures_ = 0;
  std::uint64_t pulls_ = 0, staleness_sum_ = 0, staleness_max_ = 0;  // since the last publish()
  RedoRing::Use ring_use_;
  bool answered_some_ = false;
  bool failed_ = false;
};

}  // namespace tributary

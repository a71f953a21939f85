// JobConnections: a WorkerLaneJob's means on the machine: a socket to every server lane of the job, and memory shared
// with the lanes on this machine. Thread rule: the lane's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>
#include <zmq.hpp>

#include "common/daemon/log.h"
#include "common/wire/zmq_util.h"
#include "worker/node/data_socket.h"
#include "worker/node/lane_job.h"
#include "worker/node/lane_link.h"
#include "worker/node/node_lane.h"

namespace tributary {

class JobConnections final : private WorkerLaneOutput {
 public:
  // kUnavailable if an endpoint cannot be used; errors of WorkerLaneJob::open().
  // lane, options and context outlive this.
  static Result<std::unique_ptr<JobConnections>> open(const std::shared_ptr<NodeJob>& job, NodeLane& lane,
                                                      const WorkerLaneOptions& options, zmq::context_t& context);
  ~JobConnections() override;  // REQUIRES: closed() or the context is closed

  WorkerLaneJob& job() { return *job_; }
  const std::shared_ptr<NodeJob>& memory() const { return job_->job(); }
  void add_poll_items(std::vector<zmq::pollitem_t>& items);

  // Held until close().
  void hold(RedoRing::Use ring) { ring_use_ = std::move(ring); }

  // Takes the replies of servers on this machine to requests to share memory; after the last one the job begins.
  void poll_links();
  // Up to `batch` messages per connection. True if a connection may have more.
  bool receive(int batch);
  void tick();
  // Closes the sockets; then outstanding() falls to 0 when ZeroMQ's I/O thread is done.
  void close();
  std::uint64_t outstanding() const { return lent_.outstanding(); }

 private:
  JobConnections(const NodeJob& job, NodeLane& lane, const WorkerLaneOptions& options);
  Status connect(zmq::context_t& context);
  void ask_links(std::uint64_t now_ms);
  const std::vector<ChunkOwner>& servers() const { return job_->chunks().servers(); }  // by connection
  Result<std::vector<const SharedMemory*>> regions();
  void not_shared(std::size_t connection, const Error& why);
  void receive_message(ConnectionIndex from, zmq::message_t& header, zmq::message_t& frame, int frames);

  std::uint64_t now_ns() const override;
  bool send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload) override;
  void refused(const std::string& line) override;
  void failed(LaneFailure failure) override;

  const NodeJobSpec& spec_;
  NodeLane& lane_;
  const WorkerLaneOptions& options_;
  LaneJobStats& counts_;
  RateLimitedLog noise_;
  LentMemory lent_;  // of all sockets
  std::unique_ptr<WorkerLaneJob> job_;
  std::vector<DataSocket> sockets_;  // by connection
  std::vector<LaneLink> links_;      // by connection
  bool started_ = false;             // no link is waited for; the job has started
  RedoRing::Use ring_use_;
};

}  // namespace tributary

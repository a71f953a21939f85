// WorkerLane: a thread, and for every job one DEALER socket per server lane it serves, in a ZeroMQ context of its own.
// The thin shell around WorkerLaneJobs: the thread that notices a ready gradient also sums, encodes and sends it, and
// writes the answer into the node region. Lane w serves the server lanes l with l % lanes == w.
//
// Costs of the data path:
//   locks    None. Jobs belong to this thread alone. Trainers ring an eventfd; commands of the attach thread wait in
//            a queue whose mutex is touched only when its eventfd fired.
//   copies   None on the way out: the payload is the trainer's shared memory (one rank, fp32) or the reducer's frame,
//            lent to ZeroMQ. On the way in ZeroMQ's frame is decoded straight into the node region (the only pass
//            over it).
//            With a server on this machine both frames stay where they are, and messages name the place (lane_link.h).
//   memory   Our code allocates nothing per chunk. libzmq allocates a block per header, per received frame, and a
//            handle per lent frame; tune_malloc_for_frames() keeps them within the process.
//
// Lending and teardown: every lent message is counted (LentMemory). closing() a job closes its sockets with LINGER 0,
// which makes ZeroMQ drop queued messages; the job, its frames and its shared memory live on in closing_ until the
// count is zero. When the lane stops it closes the context, which waits for ZeroMQ's I/O thread; then the count is zero
// for certain.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>
#include <zmq.hpp>

#include "common/base/patience.h"
#include "common/base/result.h"
#include "worker/node/lane_job.h"
#include "worker/node/node_lane.h"

namespace tributary {

class WorkerLane final : public NodeLane {
 public:
  static constexpr int kClosingTickMs = 2;  // while ZeroMQ still holds lent messages
  static constexpr int kBatch = 16;         // messages per connection and turn, so that none starves the others
  static constexpr std::uint64_t kLentPatienceMs = 10'000;  // then a warning; memory is never unmapped under ZeroMQ

  static Result<std::unique_ptr<WorkerLane>> start(WorkerLaneOptions options, WorkerLaneListener& listener,
                                                   Logger logger);
  ~WorkerLane() override;  // closes all jobs and joins the thread

  // Any thread.
  void open(std::shared_ptr<NodeJob> job);
  void initial_values(std::shared_ptr<NodeJob> job);
  // keep: the view ended cleanly, and residuals that the servers lack are sent before the sockets are closed, while
  // servers take them.
  void close(std::shared_ptr<NodeJob> job, bool keep);
  void trace(std::shared_ptr<NodeJob> job, std::shared_ptr<TraceBuffer> buffer);  // WorkerLaneJob::trace()

 private:
  class JobConnections;  // a job's sockets

  WorkerLane(WorkerLaneOptions options, WorkerLaneListener& listener, Logger logger, Bells bells);
  void run() override;
  void finish_keeping(std::uint64_t now_ms);
  void finish_closing(std::uint64_t now_ms);
  JobConnections* find(const NodeJob* job);

  const WorkerLaneOptions options_;

  // The thread's.
  zmq::context_t context_;
  std::vector<std::unique_ptr<JobConnections>> jobs_;
  struct Closing {
    std::unique_ptr<JobConnections> job;
    std::uint64_t since_ms = 0;
    Patience patience{0, 0};  // keeping_
    bool warned = false;
  };
  std::vector<Closing> keeping_;  // sending residuals
  std::vector<Closing> closing_;  // sockets closed
};

}  // namespace tributary

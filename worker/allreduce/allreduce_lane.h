// AllreduceLane: the lane of jobs of mode "allreduce", as WorkerLane (lane.h) is that of jobs with servers. Its one
// thread notices ready gradients of all jobs; every job has threads of its own (AllreduceJob) that reduce, exchange
// data with the other nodes through Gloo and step the optimizer. Trainers use the same session and regions.
//
// A job's life here: open() publishes this node's addresses through the AllreducePort and connects to the other nodes
// as peer_address() delivers theirs. One node then distributes the values that the view begins with: node 0 the
// initial_values() of a fresh job, the node that has it the checkpoint of round ViewPlan::start of a resumed one. Every
// chunk of the layout belongs to (shard 0, lane 0), so that the session rings this lane's doorbell; chunks are the
// buckets of the collectives.
//
// A clean close() follows a stop at a round boundary. The nodes that keep checkpoints then write one; node 0's is reported
// to the coordinator, which informs all trainers (AllreducePort::checkpointed). Every node keeps its connections until
// its neighbours have received all they need (kPartingPatienceMs at most). Any other close() cuts the connections at
// once. Both wake the job's threads wherever they wait.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/config.h"
#include "common/wire/messages.h"
#include "worker/allreduce/allreduce_job.h"
#include "worker/allreduce/allreduce_means.h"

namespace tributary {

class AllreduceLane final : public NodeLane {
 public:
  static constexpr std::size_t kMaxEarly = 1024;  // addresses of views that are not open here

  // config.address: of this machine, a number or a name; the other nodes connect to it. config.collective_timeout_ms:
  // from the moment all nodes have contributed to a bucket (waiting for another node's trainers is no fault); also how
  // long other nodes' addresses and connections may take. streams: collectives under way at a time; 0: the default.
  static Result<std::unique_ptr<AllreduceLane>> start(WorkerConfig config, WorkerLaneListener& listener,
                                                      AllreducePort& port, Logger logger, std::uint16_t streams = 0);
  ~AllreduceLane() override;  // closes all jobs and joins the threads

  // Any thread.
  void open(std::shared_ptr<NodeJob> job);
  void initial_values(std::shared_ptr<NodeJob> job);
  void peer_address(PeerAddress address);  // may come before open()
  void close(std::shared_ptr<NodeJob> job, bool clean);

  // Memory of a job besides its shared memory: optimizer state and staging (and a copy for checkpoints).
  static std::uint64_t bytes_needed(const NodeJobSpec& spec);

 private:
  AllreduceLane(WorkerConfig config, WorkerLaneListener& listener, AllreducePort& port, Logger logger, Bells bells,
                std::uint16_t streams);
  void run() override;
  void finish_closing();

  const AllreduceMeans means_;  // of its jobs

  // The thread's.
  struct Closing {
    std::unique_ptr<AllreduceJob> job;
    bool owes_outcome = false;  // to node 0's coordinator, and counted in jobs_keeping()
  };
  std::vector<std::unique_ptr<AllreduceJob>> jobs_;  // running
  std::vector<Closing> closing_;                     // ending
  std::vector<PeerAddress> early_;                   // of views that are not open here
};

}  // namespace tributary

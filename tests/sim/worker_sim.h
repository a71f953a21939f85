// A worker process of a simulated cluster: NodeJobs with its redo rings, and WorkerLaneJobs as the daemon has
// them. Only their shells are replaced here, the code with threads and sockets (worker/control.cc,
// worker/node/lane.cc, worker/attach_server.cc).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/lane/told_places.h"
#include "tests/sim/control_link_sim.h"
#include "tests/sim/replica_lane_sim.h"
#include "tests/sim/wires.h"
#include "worker/node/lane_job.h"
#include "worker/node/lane_link.h"
#include "worker/node_jobs.h"

namespace tributary::sim {

class JobWorld;
class TrainerSim;
class WorkerSim;

// worker/node/lane.cc: the connections of one view of the job on one lane.
class WorkerLaneSim final : private WorkerLaneOutput {
 public:
  WorkerLaneSim(JobWorld& world, WorkerSim& worker, std::shared_ptr<NodeJob> memory, std::uint16_t index);
  ~WorkerLaneSim() override;  // a moment later servers notice that nobody reads what they told

  WorkerLaneJob& job() { return *job_; }
  const std::shared_ptr<NodeJob>& memory() const { return memory_; }
  void scan();
  void tick();

 private:
  struct Link {
    std::uint32_t number = 0;  // 0: nothing is shared
    std::weak_ptr<ToldPlaces> server;
    std::shared_ptr<const BufferPool> mapping;  // stays when the server is gone
    ReadPlaces read;
    std::deque<Packet> late;  // arrived, and not looked at yet
  };
  std::uint32_t node() const;  // its rank among nodes
  void settle_links(const std::vector<std::string>& endpoints);
  void receive(ConnectionIndex from, Packet& packet);
  void read(ConnectionIndex from, const Packet& packet);
  void handle(const Packet& packet);

  std::uint64_t now_ns() const override;
  bool send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload) override;
  void refused(const std::string& line) override;
  void failed(LaneFailure failure) override;

  JobWorld& world_;
  WorkerSim& worker_;
  const std::shared_ptr<NodeJob> memory_;
  struct Lender;
  void write_over(ChunkIndex chunk);
  std::shared_ptr<WorkerLaneJob> job_;
  std::shared_ptr<const Lender> lender_;                     // of what is sent
  std::map<ChunkIndex, std::span<const std::byte>> frames_;  // that were sent and are not answered
  std::vector<std::unique_ptr<Dealer>> sockets_;
  std::vector<Link> links_;                                      // by connection
  const std::shared_ptr<char> life_ = std::make_shared<char>();  // a view may end before its process
};

class WorkerSim final : public Process, private TrainerPort, private CoordinatorPort, private LanePort {
 public:
  WorkerSim(JobWorld& world, std::uint32_t node);
  ~WorkerSim() override;

  const std::string& name() const { return name_; }
  std::uint32_t node() const { return node_; }
  std::uint64_t incarnation() const { return incarnation_; }
  bool has_ring() const { return has_ring_; }
  // Stops the worker cleanly: its trainers leave after their round.
  void drain();
  bool drained() const { return jobs_->drained() && keeping_.empty() && !keeps_replicas() && outbox_.empty(); }
  // Returns the node of a worker by the name that the coordinator has for that worker.
  static std::uint32_t node_of(const std::string& name);

  // A trainer's socket and the messages over it, which are carried out a moment later.
  TrainerId connect(TrainerSim& trainer);
  void trainer_says(TrainerId trainer, std::function<void(NodeJobs&)> what);
  void trainer_gone(TrainerId trainer);  // closed, or killed
  // The memory that a trainer has mapped. Null: the view is over.
  std::shared_ptr<NodeJob> memory(JobId job, ViewId view) const;
  void ring_doorbells();
  void lane_failed(std::shared_ptr<NodeJob> job, LaneFailure failure);
  void publish(PeerAddress address);  // a view's, to the other nodes

 private:
  struct Trainer {
    TrainerSim* trainer = nullptr;  // null: closed
    std::uint64_t says_until_ns = 0, hears_until_ns = 0;
  };
  // worker/control.cc
  void beat();
  Heartbeat heartbeat() const;
  void forget();
  void receive(Packet& packet);
  void flush();
  bool transmit(const ControlMessage& message);
  void send(const ControlMessage& message) override;
  std::uint64_t now_ms() const { return now_ns() / 1'000'000; }

  void send(TrainerId trainer, const AttachMessage& message, std::span<const int> fds) override;

  std::vector<int> doorbells(bool allreduce) const override;
  void open(const std::shared_ptr<NodeJob>& job) override;
  void peer_address(const PeerAddress& address) override;
  Result<std::optional<Round>> newest_checkpoint(const JobConfig&, const Layout&) const override;
  void initial_values(const std::shared_ptr<NodeJob>& job) override;
  void close(const std::shared_ptr<NodeJob>& job, bool keep) override;
  void command(std::function<void()> action);
  bool keeps_replicas() const;
  ReplicaViewSim* replica(const NodeJob* job) const;  // null: it is not open
  void look_after_replicas();
  template <class Function>
  void each_lane(const std::shared_ptr<NodeJob>& job, Function&& function);

  JobWorld& world_;
  const std::uint32_t node_;
  const std::uint64_t incarnation_;
  const std::string name_;
  std::uint64_t coordinator_ = 0;
  std::deque<ControlMessage> outbox_;
  std::map<TrainerId, Trainer> trainers_;
  std::vector<std::unique_ptr<WorkerLaneSim>> lanes_, keeping_;
  // All-reduce: views that run, those that end, and what came before a view.
  std::vector<std::shared_ptr<ReplicaViewSim>> replicas_, ending_replicas_;
  std::vector<PeerAddress> early_;
  std::uint64_t commands_until_ns_ = 0;
  bool has_ring_ = false;
  bool rung_ = false;
  std::unique_ptr<ControlLinkSim> link_;  // null: it is being killed
  std::unique_ptr<NodeJobs> jobs_;
  std::function<void()> beat_, tick_;
};

}  // namespace tributary::sim

// The simulated cluster itself: who is there, what happens to them, and when it is over.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/daemon/log.h"
#include "tests/sim/checkpoints_judge.h"
#include "tests/sim/checkpoints_sim.h"
#include "tests/sim/cluster_judge.h"
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/disk_sim.h"
#include "tests/sim/operator_sim.h"
#include "tests/sim/random.h"
#include "tests/sim/replica_disk_sim.h"
#include "tests/sim/replica_lane_sim.h"
#include "tests/sim/server_sim.h"
#include "tests/sim/trainer_sim.h"
#include "tests/sim/values_judge.h"
#include "tests/sim/virtual_clock.h"
#include "tests/sim/wires.h"
#include "tests/sim/worker_sim.h"

namespace tributary::sim {

class ClusterWorld {
 public:
  static constexpr std::uint64_t kHeartbeatMs = 250, kPeerTimeoutMs = 2500;

  ClusterWorld(const ClusterScenario& scenario, Mutation mutation, bool trace);
  ~ClusterWorld();
  ClusterOutcome run();

  static std::uint32_t machine_of_server(std::uint32_t index) { return index; }
  static std::uint32_t machine_of_node(std::uint32_t node) { return 100 + node; }

  void broken(const std::string& what);
  void say(const std::string& who, const std::string& what);
  Logger logger(const std::string& who);
  // The same of a control message; heartbeats are not worth a line.
  void say_message(const std::string& who, const std::string& other, const ControlMessage& message);
  std::uint64_t fresh_incarnation() { return random.next() | 1; }
  TrainerId fresh_trainer() { return last_trainer_ = last_trainer_.next(); }
  WorkerSim* worker(std::uint32_t node) const { return nodes_[node].worker.get(); }
  ServerLaneSim* lane_at(const std::string& endpoint) const;  // null: nobody is there
  ReplicaDisk& replica_disk(std::uint32_t node) { return replica_disks_[node]; }
  void wake_trainers(std::uint32_t node);
  bool permutes() const;  // whether ranks are dealt out again in this scenario
  // The rank among nodes that a machine's trainers are started with.
  std::uint32_t place_of(std::uint32_t node) const { return places_[node]; }
  std::uint16_t servers() const { return servers_now_; }  // of the cluster
  const ServerSim* server(std::uint32_t index) const { return servers_[index].process.get(); }
  bool brought_back() const { return operator_.restored() > 0; }  // the job is one out of a checkpoint
  std::uint64_t faults_over_ns() const { return faults_over_ns_; }
  // A view is about to end; this answer may be one of its last.
  void stops() { stops_ = true; }
  bool is_last(Version version) const { return stops_ || version.value >= scenario.rounds; }
  // For who orders a restore.
  bool trains() const { return !over(); }
  void stop_trainers();
  void start_trainers();
  bool changes_servers() const { return scenario.later_servers != servers_now_; }
  void replace_servers();
  void retire(std::shared_ptr<BufferPool> pool) { pools_.push_back(std::move(pool)); }
  // The coordinator sends this. False: it does not arrive.
  bool told(const ServerSim& coordinator, PeerId to, const ControlMessage& message);
  // The coordinator is about to be told this. True: it does not live to hear it.
  bool dies_before(const SnapshotDone& done);
  // The same; a planted bug may have made another message of it.
  void plant(ControlMessage& message) const;

 private:
  struct Server {
    std::unique_ptr<ServerSim> process;
    std::uint64_t starts = 0;  // counts what was planned; only the newest plan holds
  };
  struct Node {
    std::unique_ptr<WorkerSim> worker;
    std::vector<std::unique_ptr<TrainerSim>> trainers;
    std::vector<std::uint64_t> starts;  // of the worker, then of the trainers
    bool had_ring = false;
    bool here = false;  // elastic: it has come, and not gone for ever
  };
  std::uint32_t processes() const;
  void strike(const ClusterScenario::Fault& fault);
  void permute_ranks(std::uint64_t for_ns);
  void spoil(const ClusterScenario::Fault& fault, bool uncommitted);
  void kill(std::uint32_t who, std::uint64_t for_ns);
  void kill_server(std::uint32_t index, std::uint64_t for_ns);
  void end_server(std::uint32_t index, std::uint64_t for_ns);
  void start_server(std::uint32_t index);
  void look_after_rings();
  // cluster_members.cc: nodes that come and go
  void join(std::uint32_t index);
  void leave(std::uint32_t index, std::uint64_t for_ns);
  void watch_leave(std::uint32_t index, std::uint64_t incarnation, std::uint64_t by_ns, std::uint64_t for_ns);
  void has_left(std::uint32_t index, std::uint64_t for_ns);
  void gone(std::uint32_t index);
  void drain_server(std::uint32_t index, std::uint64_t for_ns);
  void watch_drain(std::uint32_t index, std::uint64_t incarnation, std::uint64_t by_ns, std::uint64_t for_ns);
  void server_ended(std::uint32_t index, std::uint64_t incarnation, std::uint64_t for_ns);
  void supervise();
  bool some_failed() const;
  bool over() const;
  void check_progress();
  Process* process(std::uint32_t who);

 public:
  const ClusterScenario scenario;
  const Mutation mutation;
  const std::string job_json;
  const std::vector<TensorSpec> tensors;
  const std::vector<std::uint64_t> offsets;  // of each of them in the whole model
  // By view and rank: the round whose backward pass it has come to.
  std::map<std::pair<ViewId, std::uint32_t>, std::uint64_t> backward;
  Random random;
  std::uint64_t resends = 0;

 private:
  const bool trace_;
  bool stops_ = false;
  ClusterOutcome outcome_;
  std::vector<Disk> disks_;
  std::vector<ReplicaDisk> replica_disks_;

 public:
  ReplicasJudge replicas_judge;
  ClusterJudge judge;
  ValuesJudge values_judge;
  CheckpointFiles checkpoints;
  const CheckpointsJudge checkpoints_judge;

 private:
  // Destroyed in reverse: events hold packets, which hold buffers, as processes do.
  std::vector<std::shared_ptr<BufferPool>> pools_;

 public:
  VirtualClock clock;
  Wires wires;
  ReplicaRings rings;

 private:
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> places_;  // by machine
  std::vector<Server> servers_;
  std::uint16_t servers_now_;
  OperatorSim operator_;
  TrainerId last_trainer_;
  std::set<std::pair<std::uint16_t, ViewId>> stops_told_;
  std::optional<ClusterScenario::Fault> waiting_;  // for a snapshot that is complete and not committed
  std::uint64_t faults_over_ns_ = 0, struck_ns_ = 0;
  std::optional<std::uint64_t> deliveries_then_;  // when the faults were over
  std::uint64_t since_done_ns_ = 0;
  std::uint32_t relaunches_ = 0;
  std::function<void()> supervise_;
};

}  // namespace tributary::sim

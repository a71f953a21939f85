// A job of a simulated cluster: its nodes with their workers and trainers, the judges that know what is right for it,
// its operator, and its end. Servers, disks, coordinator, wires and clock are the cluster's, which has one job or two.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/daemon/log.h"
#include "server/coordinator/coordinator_core.h"
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/disk/replica_disk_sim.h"
#include "tests/sim/judge/checkpoints_judge.h"
#include "tests/sim/judge/cluster_judge.h"
#include "tests/sim/judge/parts_judge.h"
#include "tests/sim/judge/values_judge.h"
#include "tests/sim/operator_sim.h"
#include "tests/sim/random.h"
#include "tests/sim/replica_lane_sim.h"
#include "tests/sim/trainer_sim.h"
#include "tests/sim/virtual_clock.h"
#include "tests/sim/wires.h"
#include "tests/sim/worker_sim.h"

namespace tributary::sim {

class ClusterWorld;
class ServerSim;

class JobWorld {
 public:
  // The job's machines are numbered from first_machine on.
  JobWorld(ClusterWorld& cluster, const ClusterScenario& scenario, std::uint32_t first_machine);
  ~JobWorld();

  void start();
  void end_processes();

  // Called by its nodes' processes and by its operator.
  void broken(const std::string& what) const;
  void say(const std::string& who, const std::string& what) const;
  Logger logger(const std::string& who) const;
  std::string name_of(const char* kind, std::uint32_t number) const;  // the same number may be of another job, too
  std::uint64_t fresh_incarnation() const;
  TrainerId fresh_trainer() const;
  ServerLaneSim* lane_at(const std::string& endpoint) const;  // null: nobody is there
  WorkerSim* worker(std::uint32_t node) const { return nodes_[node].worker.get(); }
  ReplicaDisk& replica_disk(std::uint32_t node) { return replica_disks_[node]; }
  std::uint32_t machine_of(std::uint32_t node) const { return first_machine_ + node; }
  void wake_trainers(std::uint32_t node);
  bool permutes() const;  // whether ranks are dealt out again in this scenario
  // The rank among nodes that a machine's trainers are started with.
  std::uint32_t place_of(std::uint32_t node) const { return places_[node]; }
  bool brought_back() const { return orders.restored() > 0; }  // the job is one out of a checkpoint
  // A view is about to end; this answer may be one of its last.
  void stops() { stops_ = true; }
  bool is_last(Version version) const { return stops_ || version.value >= scenario.rounds; }

  // The coordinator sends this of the job. False: the message does not arrive.
  bool told(const ServerSim& coordinator, PeerId to, const ControlMessage& message);
  // The coordinator is about to be told this; a planted bug may have made another message of it.
  void plant(ControlMessage& message) const;
  // As the coordinator has it; none: it does not know the job.
  std::optional<CoordinatorCore::JobStatus> status_in(const CoordinatorCore& coordinator) const;

  // Its processes: workers by node, then trainers by rank. job_nodes.cc: their faults, and nodes that come and go.
  std::uint32_t processes() const { return scenario.nodes + scenario.nodes * scenario.ranks; }
  Process* process(std::uint32_t who) const;
  void kill(std::uint32_t who, std::uint64_t for_ns);
  void lose_machine(std::uint32_t node, std::uint64_t for_ns);
  void join(std::uint32_t index);
  void leave(std::uint32_t index, std::uint64_t for_ns);
  void gone(std::uint32_t index);
  void permute_ranks(std::uint64_t for_ns);
  void stop_trainers();
  void start_trainers();
  void look_after_rings();

  void look_at_parts();
  // Every quarter of a second: trainers are started again that have ended before the job has, and the job goes on.
  void supervise();
  // There are some more faults, and from their end on it goes on.
  void faults_go_on() { deliveries_then_.reset(); }
  // Something befalls the job. Until then it has one view, whatever befalls another job.
  void befallen() { befallen_ = true; }
  // The job has ended and its record says so; or it cannot go on, and said why.
  bool over() const;
  bool ended() const { return ended_; }  // and was seen to be over
  bool refused() const { return judge.disk_hurt() && some_failed(); }

  ClusterWorld& cluster;
  const ClusterScenario& scenario;
  const Mutation mutation;
  Random& random;
  VirtualClock& clock;
  Wires& wires;
  const std::string job_json;
  const std::vector<TensorSpec> tensors;
  const std::vector<std::uint64_t> offsets;  // of each of them in the whole model
  // By view and rank: the round whose backward pass it has come to.
  std::map<std::pair<ViewId, std::uint32_t>, std::uint64_t> backward;
  std::uint64_t resends = 0;

 private:
  struct Node {
    std::unique_ptr<WorkerSim> worker;
    std::vector<std::unique_ptr<TrainerSim>> trainers;
    std::vector<std::uint64_t> starts;  // of the worker, then of the trainers
    bool had_ring = false;
    bool here = false;  // elastic: it has come, and not gone for ever
  };
  void watch_leave(std::uint32_t index, std::uint64_t incarnation, std::uint64_t by_ns, std::uint64_t for_ns);
  void has_left(std::uint32_t index, std::uint64_t for_ns);
  void start_trainer(std::uint32_t node, std::uint32_t rank);
  void restart_trainers();
  void check_progress();
  bool some_failed() const;

  const std::uint32_t first_machine_;
  bool stops_ = false;
  std::vector<ReplicaDisk> replica_disks_;

 public:
  ReplicasJudge replicas_judge;
  ClusterJudge judge;
  ValuesJudge values_judge;
  const CheckpointsJudge checkpoints_judge;
  PartsJudge parts_judge;
  ReplicaRings rings;
  OperatorSim orders;

 private:
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> places_;  // by machine
  std::set<std::pair<std::uint16_t, ViewId>> stops_told_;
  std::optional<std::uint64_t> deliveries_then_;  // when the faults were over
  std::uint64_t since_done_ns_ = 0;
  std::uint32_t relaunches_ = 0;
  bool ended_ = false;
  bool befallen_ = false;
  std::set<ViewId> views_;
  std::map<std::pair<JobId, ViewId>, std::set<std::uint16_t>> opened_on_;  // servers
};

}  // namespace tributary::sim

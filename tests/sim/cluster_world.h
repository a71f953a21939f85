// The simulated cluster itself: its servers and disks, the jobs that share them, what happens to them, and when it is
// over.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/daemon/log.h"
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/disk/checkpoints_sim.h"
#include "tests/sim/disk/disk_sim.h"
#include "tests/sim/job_world.h"
#include "tests/sim/random.h"
#include "tests/sim/server_sim.h"
#include "tests/sim/virtual_clock.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

class ClusterWorld {
 public:
  static constexpr std::uint64_t kHeartbeatMs = 250, kPeerTimeoutMs = 2500;
  // A daemon that is stopped goes after this (limits.stop_timeout_s), whatever is not done.
  static constexpr std::uint64_t kStopTimeoutNs = 20'000 * kMs;
  static constexpr std::uint64_t kMemberLookNs = 20 * kMs;  // until one looks again whether it is done
  // Its last words still go out (CoordinatorLink::kLingerMs).
  static constexpr std::uint64_t kLingerNs = 100 * kMs;

  ClusterWorld(const ClusterScenario& scenario, Mutation mutation, bool trace);
  ~ClusterWorld();
  ClusterOutcome run();

  static std::uint32_t machine_of_server(std::uint32_t index) { return index; }

  void broken(const std::string& what);
  void say(const std::string& who, const std::string& what);
  Logger logger(const std::string& who);
  // The same of a control message; heartbeats are not worth a line.
  void say_message(const std::string& who, const std::string& other, const ControlMessage& message);
  std::uint64_t fresh_incarnation() { return random.next() | 1; }
  TrainerId fresh_trainer() { return last_trainer_ = last_trainer_.next(); }
  ServerLaneSim* lane_at(const std::string& endpoint) const;  // null: nobody is there
  std::uint16_t servers() const { return servers_now_; }      // of the cluster
  const ServerSim* server(std::uint32_t index) const { return servers_[index].process.get(); }
  std::uint64_t servers_started() const { return servers_started_; }
  // A server's store, as a process on that machine reads it through the network; null: it cannot be reached now.
  StoreSim* readable_store(std::uint32_t machine, ShardIndex server);
  // The server that has the coordinator; of two that do not know of each other the one of the higher term. Null: none has.
  const ServerSim* chief() const;
  ClusterOutcome& outcome() { return outcome_; }
  std::vector<Disk>& disks() { return disks_; }

  // Which job is meant. An id's is known since the coordinator first spoke of it; null: it never did.
  JobWorld* job_with(JobId id);
  JobWorld& job(JobId id);                        // REQUIRES: servers have opened a view of it
  JobWorld* job_called(const std::string& name);  // null: there is none
  JobWorld* job_of(const std::string& job_json);  // of a node that joins
  const std::vector<std::unique_ptr<JobWorld>>& jobs() const { return jobs_; }

  std::uint64_t faults_over_ns() const { return faults_over_ns_; }
  std::uint64_t struck_ns() const { return struck_ns_; }
  // Something is still to happen until then.
  void faults_until(std::uint64_t ns);
  bool changes_servers() const { return scenario.later_servers != servers_now_; }
  void replace_servers();
  void look_after_rings();
  void retire(std::shared_ptr<BufferPool> pool) { pools_.push_back(std::move(pool)); }
  // The coordinator sends this. False: it does not arrive.
  bool told(const ServerSim& coordinator, PeerId to, const ControlMessage& message);
  // The coordinator is about to be told this. True: it does not live to hear it.
  bool dies_before(const SnapshotDone& done);
  // The same; a planted bug may have made another message of it.
  void plant(ControlMessage& message);

 private:
  struct Server {
    std::unique_ptr<ServerSim> process;
    std::uint64_t starts = 0;  // counts what was planned; only the newest plan holds
    bool moved = false;        // its machine was lost for good: another one has its index
  };
  // A process of a job, as its job counts them.
  struct Member {
    JobWorld* job;
    std::uint32_t who;
  };
  // cluster_faults.cc
  void judge_scheduled(const std::string& path);
  std::uint32_t processes() const;
  Member member(std::uint32_t who) const;  // REQUIRES: it is no server
  Process* process(std::uint32_t who);
  void strike(const ClusterScenario::Fault& fault);
  void let_know(const ClusterScenario::Fault& fault);
  void spoil(const ClusterScenario::Fault& fault, std::optional<JobId> uncommitted);
  void kill(std::uint32_t who, std::uint64_t for_ns);
  void server_died();
  void kill_server(std::uint32_t index, std::uint64_t for_ns);
  void end_server(std::uint32_t index, std::uint64_t for_ns);
  void start_server(std::uint32_t index);
  void drain_server(std::uint32_t index, std::uint64_t for_ns);
  void watch_drain(std::uint32_t index, std::uint64_t incarnation, std::uint64_t by_ns, std::uint64_t for_ns);
  void server_ended(std::uint32_t index, std::uint64_t incarnation, std::uint64_t for_ns);
  bool began_anew() const;

 public:
  const ClusterScenario scenario;
  const Mutation mutation;
  Random random;

 private:
  const bool trace_;
  ClusterOutcome outcome_;
  std::vector<Disk> disks_;

 public:
  CheckpointFiles checkpoints;

 private:
  // Destroyed in reverse: events hold packets, which hold buffers, as processes do.
  std::vector<std::shared_ptr<BufferPool>> pools_;
  std::vector<std::unique_ptr<JobWorld>> jobs_;
  std::map<JobId, JobWorld*> ids_;

 public:
  VirtualClock clock;
  Wires wires;

 private:
  std::vector<Server> servers_;
  std::uint16_t servers_now_;
  std::uint64_t servers_started_ = 0;
  TrainerId last_trainer_;
  std::optional<ClusterScenario::Fault> waiting_;  // for a snapshot that is complete and not committed
  std::uint64_t faults_over_ns_ = 0, struck_ns_ = 0;
  std::function<void()> supervise_;
};

}  // namespace tributary::sim

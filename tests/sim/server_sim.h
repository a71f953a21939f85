// A server process of a simulated cluster: ControlJobs, CoordinatorCore (server 0) and ShardCores as the daemon has
// them. Only their shells are replaced here, the code with threads and sockets (server/control.cc,
// server/lane/lane.cc, server/coordinator/coordinator.cc).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "server/control_jobs.h"
#include "server/coordinator/cluster/coordinator_seat.h"
#include "server/coordinator/coordinator_core.h"
#include "server/lane/queued_lane.h"
#include "tests/sim/control_link_sim.h"
#include "tests/sim/disk/checkpoints_sim.h"
#include "tests/sim/disk/disk_sim.h"
#include "tests/sim/disk/fetches_sim.h"
#include "tests/sim/disk/snapshots_sim.h"
#include "tests/sim/disk/store_orders_sim.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

class ClusterWorld;
class ServerSim;

// LaneJobs on the simulated network: commands are carried out in order, a moment after they were given.
class ServerLaneSim final : public QueuedLane, private LaneOutput, private LaneListener {
 public:
  ServerLaneSim(ClusterWorld& world, ServerSim& server, LaneIndex lane);
  ~ServerLaneSim() override;

  // As LaneJobs does, with judges and planted bugs around it.
  void open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override;
  void reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override;
  void restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState state) override;
  void decide(const RoundDecision& decision) override;

  // This view of the job goes on with what was kept; any other begins with what is loaded.
  void goes_on(JobId job, ViewId view) { begins_[job].goes_on = view; }

  const std::string& endpoint() const { return endpoint_; }
  std::optional<Version> held(JobId job, ViewId view, ChunkIndex chunk) const;
  void turn() { jobs_.turn(); }
  // As LaneLinks::grant(): this node's worker maps the buffers of the job, and is told where answers lie in them.
  // link 0: the job is not open here in that view.
  struct Link {
    std::uint32_t number = 0;
    std::weak_ptr<ToldPlaces> server;
    std::shared_ptr<const BufferPool> mapping;
  };
  Link link(JobId job, ViewId view, NodeRank node);

 private:
  void post(std::function<void(LaneJobs&)> command) override;
  void receive(PeerId from, Packet& packet);
  void check_bounds(const ShardCore& core);

  // LaneOutput
  std::uint64_t now_ms() const override;
  std::uint64_t now_ns() const override;
  void send(PeerId to, const DataMessage& message, const BufferRef& values, const PayloadPlace& place) override;
  std::unique_ptr<PoolPreparing> preparing() override;
  void refused(const std::string&) override {}
  void warn(const std::string&) override {}

  // LaneListener: as server/control.cc
  void lane_opened(LaneIndex lane, JobId job, ViewId view, const Status& status) override;
  void lane_snapshot(LaneIndex lane, JobId job, ViewId view, Round round, bool started) override;
  void lane_parked(LaneIndex lane, JobId job, ViewId view, bool any, Version min, Version max) override;
  void lane_stopped(LaneIndex lane, JobId job, ViewId view, Round round, bool kept) override;
  void lane_captured(ChunkSnapshot snapshot) override;
  void lane_facts(LaneIndex lane, RoundFacts facts) override;

  ClusterWorld& world_;
  ServerSim& server_;
  const std::string endpoint_;
  LaneJobs jobs_;
  const std::shared_ptr<ToldPlaces> told_;  // of jobs_, as long as this process lives: links of workers hold it weakly
  std::uint64_t commands_until_ns_ = 0;
  std::size_t commands_ = 0;  // that wait
  struct Begin {
    ViewId goes_on;
    std::map<ChunkIndex, ChunkState> loaded;  // since the last open()
  };
  std::map<JobId, Begin> begins_;
  std::set<std::tuple<ViewId, NodeRank, ChunkIndex>> refused_;  // last answers that were not sent
  std::unique_ptr<Listener> listener_;
};

class ServerSim final : public Process, private ControlJobsOutput, private CoordinatorOutput {
 public:
  // moved: it is on another machine than the list of servers that may have the coordinator says.
  ServerSim(ClusterWorld& world, std::uint16_t index, Disk& disk, bool moved);
  ~ServerSim() override;

  std::uint16_t index() const { return index_; }
  std::uint64_t incarnation() const { return incarnation_; }
  const std::string& name() const { return name_; }
  // Null: this server does not have the coordinator.
  CoordinatorCore* coordinator() const { return coordinator_.get(); }
  std::uint64_t coordinator_id() const { return coordinator_id_; }
  Term term() const { return seat_ ? seat_->term() : Term(); }
  // Returns the peer's server number at the coordinator; none: the peer is no server.
  std::optional<std::uint16_t> server_of(PeerId peer) const;
  std::string name_of(PeerId peer) const;
  static constexpr std::uint32_t kStranger = ~0u;
  std::uint32_t node_of(PeerId peer) const;

  // SIGTERM. The drained server ends and reports what it could not save.
  void drain();
  bool drained() const { return drained_ && (!coordinator_ || coordinator_drained_); }
  std::vector<NotSaved> not_saved() const { return jobs_.not_saved(); }

  // Takes an event of a lane; the control thread carries it out a moment later.
  void lane_says(std::function<void(ControlJobs&)> what);
  // Returns the version of a chunk in memory; none: the view is not open here.
  std::optional<Version> held(LaneIndex lane, JobId job, ViewId view, ChunkIndex chunk) const {
    return lanes_.at(lane.value)->held(job, view, chunk);
  }
  ServerLaneSim* lane_at(const std::string& endpoint) const {
    const auto found = std::ranges::find(lanes_, endpoint, [](const auto& lane) { return lane->endpoint(); });
    return found == lanes_.end() ? nullptr : found->get();
  }
  StoreSim& store() { return store_; }
  void captured(ChunkSnapshot snapshot) { snapshots_.captured(std::move(snapshot)); }

 private:
  // server/control.cc
  void turn();
  void receive(Packet& packet);
  void opens(const OpenJob& m);
  StoreOrdersSim::Failed loads(JobId job);
  void on(const DropCheckpoint& m);
  void check_drain();
  void end_drain();
  void meet(std::uint64_t incarnation, bool hello);
  void say_hello();
  void heartbeat();
  void beat();
  void flush();
  bool send_now(const ControlMessage& message);
  void send(ControlMessage message) override;
  void send_or_drop(const ControlMessage& message) override { send_now(message); }
  void hello() override { say_hello(); }
  void changed() override {}
  std::uint64_t now_ms() const override { return now_ns() / 1'000'000; }

  // server/coordinator/coordinator.cc
  void send(PeerId to, const ControlMessage& message) override;
  void serve_coordinator();
  void begin_coordinator(std::vector<JobRecord> records);
  void tick_seat();
  void hear(const SeatReport& m);
  void look_at_seat();
  void take(Term term);
  void save(const JobRecord& record) override;
  void adopt(std::vector<JobRecord> records) override;
  void remove(JobId job) override {
    records_.run([this, job] { return store_.remove(job); },
                 [this, job, core = coordinator_id_](const Status& s) {
                   if (core == coordinator_id_) coordinator_->removed(job, s, now_ms());
                 });
  }
  LargePartStore* large_parts() override { return &store_.large_parts(); }
  void on_disk(Work work, Done done) override {
    records_.run(std::move(work), [this, core = coordinator_id_, done = std::move(done)](const Status& s) {
      if (core == coordinator_id_) done(s, now_ms());
    });
  }
  std::uint64_t wall_ms() const override { return now_ms() * 1000; }  // much happens in a second here
  void log(const std::string& line, LogLevel level) override;

  ClusterWorld& world_;
  const std::uint16_t index_;
  const std::uint64_t incarnation_;
  const std::string name_;
  StoreSim store_;
  SnapshotsSim snapshots_;
  StoreOrdersSim orders_, records_;  // of the control thread and of the coordinator
  FetchesSim fetches_;
  CheckpointsSim checkpoints_;
  std::vector<std::unique_ptr<ServerLaneSim>> lanes_;
  ControlJobs jobs_;
  bool joined_ = false;
  std::uint64_t coordinator_incarnation_ = 0;
  std::uint64_t hello_ms_ = 0, heartbeat_ms_ = 0;
  bool draining_ = false, drained_ = false, coordinator_drained_ = false;
  std::uint64_t drain_ms_ = 0, drain_due_ms_ = 0;  // first; next
  std::deque<ControlMessage> outbox_;
  std::uint64_t said_until_ns_ = 0;  // by lanes
  struct Load {
    OpenJob last_open;
    std::optional<OpenJob> loaded_for;  // what was loaded last, or is being, was; and no view has got further with it
  };
  std::map<JobId, Load> loads_;
  std::unique_ptr<ControlLinkSim> link_;
  void forget(const std::string& why);
  void listen(PeerId from, const ControlMessage& message);
  std::uint64_t coordinator_id_;
  std::map<PeerId, std::uint64_t> peers_;           // incarnations
  std::map<std::uint64_t, std::uint16_t> servers_;  // by incarnation
  struct Worker {
    std::string name;
    std::uint32_t node = kStranger;
  };
  const Worker* worker_at(PeerId peer) const;  // null: it is none
  std::map<std::uint64_t, Worker> workers_;    // by incarnation
  std::unique_ptr<CoordinatorCore> coordinator_;
  std::unique_ptr<Listener> coordinator_listener_;
  std::optional<CoordinatorSeat> seat_;         // none: no other server may have the coordinator, or this one may not
  std::vector<std::unique_ptr<Dealer>> seats_;  // of the others
  std::uint64_t report_ms_ = 0;
  bool moved_ = false;  // another had the coordinator before
  Term term_;
  KnownServers known_;  // to its next core
  std::function<void()> control_tick_, coordinator_tick_;
};

}  // namespace tributary::sim

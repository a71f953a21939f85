// Views of all-reduce jobs without threads and Gloo: what AllreduceLane promises (worker/allreduce/allreduce_lane.h),
// on the virtual clock. Gradients are gathered and stepped by the product's NodeGather and ReplicaState; between the
// nodes of a view a bucket is added up when all have contributed to it, and comes to each at a time of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/disk/replica_disk_sim.h"
#include "worker/allreduce/allreduce_lane.h"
#include "worker/allreduce/replica_checkpoints.h"
#include "worker/allreduce/replica_state.h"
#include "worker/node/job.h"
#include "worker/reduce/node_gather.h"

namespace tributary::sim {

class JobWorld;
class ReplicaViewSim;
class WorkerSim;

// The connections between the nodes of a view, by their places in it.
class ReplicaRing {
 public:
  explicit ReplicaRing(std::uint32_t nodes) : members_(nodes) {}
  // A member has connected to its neighbours.
  void connected(std::uint32_t node, const std::shared_ptr<ReplicaViewSim>& member) { members_[node] = member; }
  bool all_connected() const;
  // Somebody is gone without a goodbye, and nobody can get further.
  bool broken() const { return broken_; }
  void break_off();
  // All have been told that the view has ended cleanly, so nobody needs anything of the others any more.
  void goodbye(std::uint32_t node) { goodbyes_.insert(node); }
  bool all_parted() const { return goodbyes_.size() == members_.size(); }
  std::vector<std::shared_ptr<ReplicaViewSim>> members() const;

  struct Sum {
    std::vector<float> values;
    std::uint64_t weight = 0;
  };
  // A node's sum of a bucket. All of them are there now: what every member gets.
  std::shared_ptr<const Sum> contribute(std::uint32_t node, ChunkIndex chunk, Round round, Sum sum);

 private:
  std::vector<std::weak_ptr<ReplicaViewSim>> members_;
  bool broken_ = false;
  std::set<std::uint32_t> goodbyes_;
  std::map<std::pair<Round, std::uint32_t>, std::map<std::uint32_t, Sum>> open_;  // by round and chunk: by node
};

class ReplicaRings {
 public:
  std::shared_ptr<ReplicaRing> of(const ViewPlan& view);
  // One ring's connections break.
  void break_newest();

 private:
  std::map<std::pair<JobId, ViewId>, std::shared_ptr<ReplicaRing>> rings_;
};

class ReplicaViewSim : public std::enable_shared_from_this<ReplicaViewSim> {
 public:
  ReplicaViewSim(JobWorld& world, WorkerSim& worker, std::shared_ptr<NodeJob> job, ReplicaDisk& disk);
  ~ReplicaViewSim();
  void open();

  const std::shared_ptr<NodeJob>& job() const { return job_; }
  void initial_values();
  void peer_address(const PeerAddress& address);
  void scan();
  void close(bool keep);
  bool kept() const { return kept_; }
  SnapshotDone left() const;  // REQUIRES: kept()
  // The connection to a neighbour has broken.
  void lost_neighbour();

 private:
  void try_connect();
  void try_begin();
  Status first_values();
  void take_values(const ReplicaViewSim& first);
  void get(ChunkIndex chunk, Round round, const std::shared_ptr<const ReplicaRing::Sum>& sum);
  bool cut_off() const;
  void publish(ChunkIndex chunk, Round round);
  void keep(ChunkIndex chunk, Round round);
  bool due(Round round) const;
  void write(Round round, ReplicaDisk::State state, std::function<void(const Status&)> then);
  void part();
  void write_last();
  SnapshotDone what_is_left(const Status& saved) const;
  void failed(LaneFailure::Kind kind, ErrorCode code, const std::string& what);
  void after(std::uint64_t delay_ns, std::function<void()> action);
  ReplicaArrays arrays() const { return {job_->parameters(), state_->slots(), state_->steps()}; }
  std::uint32_t node() const { return job_->spec().node.value; }
  bool keeps_checkpoints() const { return tributary::keeps_checkpoints(job_->spec().node); }
  std::uint32_t values_from() const { return job_->spec().values_from.value; }

  JobWorld& world_;
  WorkerSim& worker_;
  const std::shared_ptr<NodeJob> job_;
  const ViewPlan& view_;
  ReplicaDisk& disk_;
  const std::shared_ptr<ReplicaRing> ring_;
  std::unique_ptr<ReplicaState> state_;
  LaneChunks chunks_;
  NodeGather gather_;
  std::set<std::uint32_t> published_;
  bool initial_ = false, values_ = false, connected_ = false, begun_ = false;
  bool failed_ = false, closing_ = false, kept_ = false;
  std::uint64_t part_by_ns_ = 0;
  // The checkpoint that is captured, and then written.
  Round newest_, capturing_, written_;
  ReplicaDisk::State captured_;
  bool busy_ = false;
  std::uint64_t last_ns_ = 0;
  std::optional<SnapshotDone> left_;
};

}  // namespace tributary::sim

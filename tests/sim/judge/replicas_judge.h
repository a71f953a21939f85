// Judges all-reduce jobs. A round's parameters on any node, and all kept copies, have the reference's bits. A view
// continues from the newest checkpoint that any of its nodes named when it joined. No job begins again while its
// coordinator knows better. A rank that learns that the end is saved finds it on node 0's disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/wire/messages.h"
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/disk/replica_disk_sim.h"
#include "tests/sim/judge/rounds_judge.h"
#include "worker/node/job.h"

namespace tributary::sim {

class ReplicasJudge {
 public:
  using Broken = std::function<void(const std::string&)>;
  // disk: node 0's. registry: the coordinator's.
  ReplicasJudge(const ClusterScenario& scenario, const ReplicaDisk& disk, const Disk& registry, ClusterOutcome& outcome,
                Broken broken)
      : scenario_(scenario), disk_(disk), registry_(registry), outcome_(outcome), broken_(std::move(broken)) {}

  // Records the newest checkpoint that a joining node reports to the coordinator.
  void named(std::uint32_t node, Round checkpoint) { named_[node] = checkpoint; }
  // Checks the coordinator's welcome to a node.
  void welcome(const JobWelcome& welcome);
  void outcome(const SnapshotDone& done) { outcome_.commits += done.ok ? 1 : 0; }
  void look_at_registry();  // now and then

  void delivered(const NodeJobSpec& spec, ChunkIndex chunk, Version version, std::span<const float> params);
  void kept(Round round, const ReplicaDisk::State& state);
  void trained(std::span<const float> params);

  // Checks the report that a rank which has left gets about the state that its view ended with.
  void told(Round round, const std::optional<Error>& not_saved);

  void disk_lost() { lost_ = true; }
  bool is_lost() const { return lost_; }
  // Why trainers may be told that the job cannot go on: the message says who lacks it, and how far it was.
  bool may_refuse(const Error& error) const;
  std::uint64_t deliveries() const { return deliveries_; }
  void ended();

 private:
  std::string in_words(Round round) const { return "round " + std::to_string(round.value); }
  void set_up(const NodeJobSpec& spec);
  bool on_disk(Round round) const;
  Round newest_named() const;

  const ClusterScenario& scenario_;
  const ReplicaDisk& disk_;
  const Disk& registry_;
  ClusterOutcome& outcome_;
  const Broken broken_;
  std::unique_ptr<RoundsJudge> rounds_;
  std::shared_ptr<const Layout> layout_;
  std::map<std::uint32_t, Round> named_;
  std::optional<JobId> job_;
  ViewId view_;
  Round start_;
  Round known_;  // how far the job was, as the registry has had it since the last view began
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<ViewId, std::uint64_t>> at_;  // by node and chunk
  std::uint64_t deliveries_ = 0;
  bool lost_ = false;
};

}  // namespace tributary::sim

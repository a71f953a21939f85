// What a simulated cluster is checked against (cluster_simulation.h has the list).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/messages.h"
#include "server/shard_core.h"
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/judge.h"
#include "tests/sim/rounds_judge.h"
#include "worker/job.h"

namespace tributary::sim {

struct Disk;

class ClusterJudge {
 public:
  using Broken = std::function<void(const std::string&)>;
  ClusterJudge(const ClusterScenario& scenario, const std::vector<Disk>& disks, ClusterOutcome& outcome, Broken broken);

  // What the coordinator says.
  void opens(std::uint64_t coordinator, const OpenJob& open, std::uint16_t shard);
  void welcome(const JobWelcome& welcome);
  void committed(Round round);

  // What servers do.
  void push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame);
  void push_handled(const ShardCore& core, const Push& push);
  void decided(const ShardCore& core);
  void answers(const Answer& answer, std::span<const std::byte> payload);
  void captured(const ChunkSnapshot& snapshot);
  void snapshot_read(const ChunkSnapshot& snapshot);

  // What nodes get.
  void delivered(const NodeJobSpec& view, ChunkIndex chunk, Version version, std::span<const float> params);
  void trained(std::uint32_t node, std::span<const float> params);

  // What is lost.
  void server_died() { server_lost_ = true; }
  // A last state could not be written, and the servers go: nobody has it, as trainers that are through take their rings
  // with them.
  void last_state_failed() { last_failed_ = true; }
  void store_lost(std::uint16_t shard);
  void ring_lost();
  bool store_is_lost() const { return store_lost_; }

  std::uint64_t complete() const { return complete_; }      // rounds that every chunk has been through
  std::uint64_t deliveries() const { return deliveries_; }  // of a round's parameters
  void ended();

 private:
  struct View {
    std::uint64_t coordinator = 0;
    OpenJob open;
    std::unique_ptr<Judge> clocks;
    bool welcomed = false;
    std::uint64_t start = 0;
    std::set<std::uint16_t> kept;                     // shards that go on with what they have in memory
    std::map<std::uint32_t, std::uint64_t> versions;  // by chunk, as their servers have them
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> at;  // by node and chunk, delivered
  };
  View* view(JobId job, ViewId id);
  void begin_clocks(View& view);
  bool synchronous() const { return scenario_.mode == "sync"; }
  bool recovers() const;
  void look_at(View& of, const ShardCore& core, ChunkIndex chunk);
  void reach(std::uint32_t chunk, std::uint64_t version);
  std::uint64_t floor(const JobWelcome& welcome) const;

  const ClusterScenario& scenario_;
  const std::vector<Disk>& disks_;
  ClusterOutcome& outcome_;
  const Broken broken_;
  JudgeSetup setup_;
  std::unique_ptr<RoundsJudge> rounds_;
  std::map<std::pair<JobId, ViewId>, View> views_;
  View* newest_ = nullptr;
  std::vector<std::uint64_t> reached_;  // by chunk
  std::uint64_t complete_ = 0, deliveries_ = 0;
  Round committed_;
  bool any_commit_ = false;
  bool server_lost_ = false;  // since the last view that ran
  bool last_failed_ = false;
  bool redoing_ = false;  // a server is being brought up to the others
  bool store_lost_ = false;
  bool ring_gap_ = false;           // some node lacks pushes after the last snapshot
  std::optional<Round> gap_until_;  // a snapshot of this round makes up for it
};

}  // namespace tributary::sim

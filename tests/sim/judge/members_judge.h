// Synchronous rounds of a job whose nodes come and go: which nodes made a round decides its bits, chunk by chunk,
// because a round that was open when a view ended is made by the old nodes on some chunks and by the new ones on the
// others. So there is no reference for the whole run: the judge makes every step itself when a server has made it, from
// the chunk's version before it and the gradients of the nodes of the view, added in tree order in the order of the
// view.
//
// Each view has a judge of its own, which begins with the history of the one before. A view that goes back to a
// snapshot writes another history from there on; events of an ended view are compared with that view's own.
//
// With a round gate, the decision about a round follows from the nodes of the view that decides, on all chunks. If a
// view ended in the middle of applying it, the next one's nodes do their part of the round under the same decision.
//
// With error feedback, residuals live as long as their view, but for snapshots: the next view's nodes begin with the
// residuals of the snapshot that servers have loaded, each with its own. With another number of nodes, the first one
// begins with the sum.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "common/math/gate_decision.h"
#include "server/lane/lane_commands.h"
#include "tests/sim/judge/rounds_judge.h"

namespace tributary::sim {

class MembersJudge final : public SyncJudge {
 public:
  // nodes: the nodes of the view, by place. before: the judge of the view before; null: this is the first view.
  MembersJudge(const JudgeSetup& setup, std::vector<std::uint32_t> nodes, const MembersJudge* before, Broken broken);

  // Where ranks do not compute the same every time (JudgeSetup::deadline), rounds are made of the pushes that arrive.
  void push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) override;
  // Forget the versions or the decisions of an earlier view after this one: the history continues without them.
  void forget_after(ChunkIndex chunk, std::uint64_t version);
  void forget_decisions_after(std::uint64_t round);
  // Takes the coordinator's decision about a round. True: it is the decision of the view before, about chunks of other
  // nodes.
  bool decides(Round round, const GateDecision& decision);
  void stepped(ChunkIndex chunk, std::uint64_t version, bool again) override;
  std::span<const float> master(ChunkIndex chunk, std::uint64_t version) const override;
  std::span<const float> visible(ChunkIndex chunk, std::uint64_t version) const override;
  void delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) override;
  void snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) override;
  // A server begins with this state of its store. True: it has residuals of another number of nodes.
  bool restored(ChunkIndex chunk, const ChunkState& saved);

 private:
  using Residuals = std::vector<std::vector<float>>;  // by place in the view; empty: there are none
  struct State : SavedChunk {
    std::vector<float> visible;
    Residuals residuals;
    GateDecision gate;
  };
  // The sum of the pushes of the view's nodes, and its number of samples.
  struct Sum {
    std::vector<float> values;
    std::uint64_t weight = 0;
    Residuals residuals;  // after it
  };
  const State* find(ChunkIndex chunk, std::uint64_t version) const;
  std::shared_ptr<const State> after(const State& state, ChunkIndex chunk, Sum sum, std::uint64_t round,
                                     const GateDecision* decision) const;
  Sum sum_of(const State& state, ChunkIndex chunk, std::uint64_t round) const;
  std::vector<float> arrived_of(ChunkIndex chunk, std::uint64_t round, std::uint32_t place,
                                std::uint64_t& weight) const;
  std::vector<float> gradients_of(const State& state, ChunkIndex chunk, std::uint64_t round, std::uint32_t place,
                                  std::uint64_t& weight) const;
  GateDecision decided_by_its_nodes(Round round);
  static std::string at(ChunkIndex chunk, std::uint64_t version);

  const JudgeSetup setup_;
  const std::vector<std::uint32_t> nodes_;
  const std::shared_ptr<const Encoding> push_, pull_;
  std::vector<std::vector<std::shared_ptr<const State>>> history_;     // by chunk, version
  std::map<std::uint64_t, GateDecision> decisions_;                    // by round
  std::map<std::uint32_t, std::pair<std::uint64_t, Sum>> decided_on_;  // by chunk: the newest round that was decided
  struct Arrived {
    std::uint64_t weight = 0;
    std::vector<float> values;
  };
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>, Arrived> arrived_;  // by chunk, round, node
};

}  // namespace tributary::sim

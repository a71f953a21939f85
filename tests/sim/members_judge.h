// Synchronous rounds of a job whose nodes come and go: which nodes made a round decides its bits, chunk by chunk,
// because a round that was open when a view ended is made by the old nodes on some chunks and by the new ones on the
// others. So there is no reference for the whole run: the judge makes every step itself when a server has made it, from
// the chunk's version before it and the gradients of the nodes of the view, added in tree order in the order of the
// view.
//
// Each view has a judge of its own, which begins with the history of the one before. A view that goes back to a
// snapshot writes another history from there on; what is said about an ended view is compared with that view's own.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "tests/sim/rounds_judge.h"

namespace tributary::sim {

class MembersJudge final : public SyncJudge {
 public:
  // nodes: who takes part, by their place in the view. before: of the view before; null: the first one.
  MembersJudge(const JudgeSetup& setup, std::vector<std::uint32_t> nodes, const MembersJudge* before, Broken broken);

  // Where ranks do not compute the same every time (JudgeSetup::deadline), rounds are made of what arrives.
  void push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) override;
  // What came after `version` in an earlier view is not of the history that goes on.
  void forget_after(ChunkIndex chunk, std::uint64_t version);
  void stepped(ChunkIndex chunk, std::uint64_t version, bool again) override;
  std::span<const float> master(ChunkIndex chunk, std::uint64_t version) const override;
  std::span<const float> visible(ChunkIndex chunk, std::uint64_t version) const override;
  void delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) override;
  void snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) override;
  // A server begins with this, out of its store.
  void restored(ChunkIndex chunk, const SavedChunk& saved) const;

 private:
  struct State : SavedChunk {
    std::vector<float> visible;
  };
  const State* find(ChunkIndex chunk, std::uint64_t version) const;
  std::shared_ptr<const State> after(const State& state, ChunkIndex chunk, std::uint64_t round) const;
  // The nodes' sums, and the number of samples in them.
  std::vector<std::vector<float>> sums_of(const State& state, ChunkIndex chunk, std::uint64_t round,
                                          std::uint64_t& weight) const;
  std::vector<float> seen(const std::vector<float>& params) const;
  static std::string at(ChunkIndex chunk, std::uint64_t version);

  const JudgeSetup setup_;
  const std::vector<std::uint32_t> nodes_;
  const std::shared_ptr<const Encoding> push_, pull_;
  std::vector<std::vector<std::shared_ptr<const State>>> history_;  // by chunk, version
  struct Arrived {
    std::uint64_t weight = 0;
    std::vector<float> values;
  };
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>, Arrived> arrived_;  // by chunk, round, node
};

}  // namespace tributary::sim

// Nodes with clocks of their own: there is no one right result, but for the order in which a server applied the pushes
// there is. The judge replays that order, plainly, and compares bit for bit after every push. It also knows each node's
// clock on each chunk, so that it sees when a push is applied twice or out of turn, and when an answer holds less than
// it must: the reader's own pushes, and all nodes' up to its clock minus the bound.
#pragma once

#include <map>
#include <tuple>

#include "tests/sim/judge.h"

namespace tributary::sim {

class ClocksJudge final : public Judge {
 public:
  // saved: what the view begins with; null: a fresh job.
  ClocksJudge(const JudgeSetup& setup, const SavedState* saved, Broken broken);
  void push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) override;
  void push_handled() override;
  void answers(const Answer& answer, std::span<const std::byte> payload) override;
  void delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) override;
  void captured(const ChunkSnapshot& snapshot) override;
  void snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) override;
  void ended() override;

 private:
  struct Told {  // what a node was answered last
    bool any = false;
    std::uint64_t clock = 0, slowest = 0, version = 0;
    std::vector<std::byte> bytes;
    std::vector<float> values;  // as the node has them
  };
  struct Chunk {
    SavedChunk state;
    std::vector<Told> told;  // by node
    std::uint64_t slowest() const;
  };
  void follow();
  void apply(Chunk& chunk, const Push& push, std::span<const std::byte> frame);
  bool bound_kept(std::uint64_t clock, std::uint64_t slowest) const;
  static std::string at(const ChunkKey& key);

  const JudgeSetup setup_;
  const std::shared_ptr<const Encoding> push_, pull_;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<std::vector<float>>> delivered_;  // by node, chunk: the newest
  // By chunk, round and version: a round may be captured again, when the state has moved on.
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, SavedChunk> captured_;
  // The push that is being handled.
  const ShardCore* core_ = nullptr;
  Push handled_;
  std::span<const std::byte> frame_;
};

}  // namespace tributary::sim

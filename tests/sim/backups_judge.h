// Rounds with backup workers: complete with the first pushes that were computed from the chunk's parameters. The judge
// knows what every node has been answered on every chunk, hence which push is in time; it counts those that are not,
// each of which must be answered as dropped, and makes each round of the first nodes - backups that are.
#pragma once

#include <memory>

#include "tests/sim/arrival_judge.h"

namespace tributary::sim {

class BackupsJudge final : public ArrivalJudge {
 public:
  BackupsJudge(const JudgeSetup& setup, const SavedState* saved, Broken broken);
  void push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) override;
  void push_handled() override;
  // A node asks: a round that waited for memory may be complete now.
  void query_arrives(const ShardCore& core, ChunkIndex chunk);
  // What all nodes are to end with.
  std::span<const float> final_values(ChunkIndex chunk) const { return final_[chunk.value]; }

 private:
  struct Node {
    std::uint64_t asked = 0;
    bool waits = false, dropped = false;
    bool present = false, last = false;  // in the open round
    std::uint64_t weight = 0;
    std::vector<float> values;
  };
  struct Rounds {
    std::vector<Node> nodes;
    std::uint32_t arrived = 0;
    bool over = false;
  };
  void note_final(ChunkIndex chunk);
  void apply(Chunk& chunk, const Push& push, std::span<const std::byte> frame) override;
  void check_answer(const Chunk& chunk, const Answer& answer) override;
  void check_captured(const Chunk& chunk, const ChunkSnapshot& snapshot) override;

  const std::uint32_t quorum_;
  std::vector<Rounds> rounds_;                                                // by chunk
  std::vector<std::vector<float>> final_;                                     // by chunk: as nodes see them
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::uint64_t> dropped_;  // by shard and lane
  const ShardCore* handling_ = nullptr;
};

}  // namespace tributary::sim

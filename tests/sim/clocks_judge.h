// Modes ssp and async: a push is applied as it arrives, alone. The judge knows each node's clock on each chunk, so that
// it sees when a push is applied twice or out of turn, and when an answer holds less than it must: the reader's own
// pushes, and all nodes' up to its clock minus the bound.
#pragma once

#include "tests/sim/arrival_judge.h"

namespace tributary::sim {

class ClocksJudge final : public ArrivalJudge {
 public:
  using ArrivalJudge::ArrivalJudge;
  void ended() override;

 private:
  void apply(Chunk& chunk, const Push& push, std::span<const std::byte> frame) override;
  void check_answer(const Chunk& chunk, const Answer& answer) override;
  void check_captured(const Chunk& chunk, const ChunkSnapshot& snapshot) override;
  static std::uint64_t slowest(const Chunk& chunk);
  bool bound_kept(std::uint64_t clock, std::uint64_t slowest) const;
};

}  // namespace tributary::sim

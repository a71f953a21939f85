// Synchronous rounds: whatever the order of arrival, every version of every chunk has the bits that one process makes
// of the ranks' gradients (reference.h).
#pragma once

#include "tests/sim/judge/judge.h"
#include "tests/sim/judge/reference.h"

namespace tributary::sim {

// Rounds of all nodes: there is one right state for every chunk and version.
class SyncJudge : public Judge {
 public:
  using Judge::Judge;
  // A server has made this version. again: of a round before the view's beginning, from pushes that nodes had kept.
  virtual void stepped(ChunkIndex /*chunk*/, std::uint64_t /*version*/, bool /*again*/) {}
  // Return the servers' parameters, and the parameters as nodes see them. REQUIRES: the version has been made.
  virtual std::span<const float> master(ChunkIndex chunk, std::uint64_t version) const = 0;
  virtual std::span<const float> visible(ChunkIndex chunk, std::uint64_t version) const = 0;
};

class RoundsJudge final : public SyncJudge {
 public:
  RoundsJudge(const JudgeSetup& setup, Broken broken);
  void delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) override;
  void snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) override;
  std::span<const float> master(ChunkIndex chunk, std::uint64_t version) const override {
    return part(reference_.master(version), *setup_.layout, chunk);
  }
  std::span<const float> visible(ChunkIndex chunk, std::uint64_t version) const override {
    return part(reference_.visible(version), *setup_.layout, chunk);
  }

 private:
  const JudgeSetup setup_;
  const Reference reference_;
};

}  // namespace tributary::sim

// Synchronous rounds: whatever the order of arrival, every version of every chunk has the bits that one process makes
// of the ranks' gradients (reference.h).
#pragma once

#include "tests/sim/judge.h"
#include "tests/sim/reference.h"

namespace tributary::sim {

class RoundsJudge final : public Judge {
 public:
  // reverse_nodes: a planted bug, see ReferenceOptions.
  RoundsJudge(const JudgeSetup& setup, bool reverse_nodes, Broken broken);
  void delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) override;
  void snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) override;
  const Reference& reference() const { return reference_; }

 private:
  const JudgeSetup setup_;
  const Reference reference_;
};

}  // namespace tributary::sim

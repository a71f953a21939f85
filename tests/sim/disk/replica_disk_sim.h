// The disk of an all-reduce job's node (worker/allreduce/replica_checkpoints.h): the newest two checkpoints, which
// count only when they are whole. Chunks are records as the product writes them.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "common/base/result.h"
#include "tests/sim/disk/disk_sim.h"

namespace tributary::sim {

// Outlives the worker's processes.
class ReplicaDisk {
 public:
  using State = std::map<std::uint32_t, ChunkState>;  // by chunk
  // Takes the place of one that is there.
  Status write(Round round, const State& state);
  Status read(Round round, const EachChunk& each) const;
  // 0: there is none. An error: none of those that there are is whole.
  Result<Round> newest() const;
  bool empty() const { return checkpoints_.empty(); }
  void lose() { checkpoints_.clear(); }
  bool full = false;

 private:
  std::map<Round, std::map<std::uint32_t, Disk::Piece>> checkpoints_;
};

}  // namespace tributary::sim

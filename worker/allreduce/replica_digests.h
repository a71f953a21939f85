// ReplicaDigests: how the nodes of an all-reduce job prove to each other that their replicas hold the same bits.
//
// After every round one chunk's parameters and state are digested on every node, another one each time, and the digest
// goes around behind that chunk's next gradients (worker/device/bucket_tail.h): so no message is added, and each node
// learns by itself, before it steps, that another one's differs. All chunks have had their turn after max(chunks,
// kRounds) rounds. A replica differs when memory fails, a machine computes wrongly, or a process writes where it should
// not.
//
// Thread rule: one thread at a time for a chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tributary {

class ReplicaDigests {
 public:
  static constexpr std::uint64_t kRounds = 64;  // at least, from one digest of a chunk to its next

  // One node has nobody to compare with: nothing is due.
  ReplicaDigests(std::size_t chunks, std::uint32_t nodes);

  // Is `chunk` to be digested as it is after `round`?
  bool due(ChunkIndex chunk, Round round) const;
  void take(ChunkIndex chunk, std::span<const float> parameters, std::span<const float* const> slots,
            std::uint64_t step);
  // What goes with the chunk's next gradients: what was taken last, once; else 0.
  std::uint64_t bring(ChunkIndex chunk);

  // What to say when another node brought another digest with its gradients of `round`.
  Error difference(Round round) const;

 private:
  const std::uint64_t period_;  // 0: never
  std::vector<std::uint64_t> taken_;
};

}  // namespace tributary

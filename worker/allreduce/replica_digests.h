// ReplicaDigests: how the nodes of an all-reduce job prove to each other that their replicas hold the same bits.
//
// After a round every node digests one chunk's parameters and state, another chunk each time. The digest travels behind
// that chunk's next gradients (worker/device/bucket_tail.h): no message is added, and each node notices by itself,
// before it steps, that another one's digest differs. Each chunk has its turn once in max(chunks, kRounds) rounds, so
// rounds without a digest exist. A replica differs when memory fails, a machine computes wrongly, or a process writes
// where it should not.
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

  // A single node has no peer to compare with: nothing is due.
  ReplicaDigests(std::size_t chunks, std::uint32_t nodes);

  // Returns whether `chunk` is to be digested as it is after `round`.
  bool due(ChunkIndex chunk, Round round) const;
  void take(ChunkIndex chunk, std::span<const float> parameters, std::span<const float* const> slots,
            std::uint64_t step);
  // Returns the chunk's last digest, once, to travel with its next gradients; else 0.
  std::uint64_t bring(ChunkIndex chunk);

  // Returns the error for another node's different digest with its gradients of `round`.
  Error difference(Round round) const;

 private:
  const std::uint64_t period_;  // 0: never
  std::vector<std::uint64_t> taken_;
};

}  // namespace tributary

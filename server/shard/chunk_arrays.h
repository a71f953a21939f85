// The arrays that a job keeps of each of its chunks, by purpose. A lane's pool must have room for them, and the memory
// formula (server/memory_formula.h) adds them up. A pool's block holds any of them.
#pragma once

#include <cstddef>

namespace tributary {

struct ShardJob;

struct ChunkArrays {
  std::size_t state = 1;      // parameters and the optimizer's state
  std::size_t encoded = 0;    // payload of answers, where it is not the parameters themselves
  std::size_t estimate = 0;   // delta encodings: the workers' parameters
  std::size_t previous = 0;   // recovery: the nodes' parameters before the last step
  std::size_t sums = 0;       // gate: the sum that waits for a decision
  std::size_t told = 0;       // clocks: answers that nodes have and have not pushed after, one a node
  std::size_t residuals = 0;  // of a resumed job's nodes, until the first round is complete

  // In use as long as nothing is being sent and no snapshot held.
  std::size_t steady() const { return state + encoded + estimate + previous + sums + told; }
  // The snapshot's copy, which its writer holds while all chunks are stepped.
  std::size_t snapshot() const { return state + estimate; }
  // The bound: one copy for training, one that a snapshot still holds, and one more payload of an answer that is being
  // sent, or read by a slow worker on this machine.
  std::size_t most() const { return steady() + snapshot() + encoded + previous + 1 + residuals; }
};

ChunkArrays chunk_arrays(const ShardJob& job);

}  // namespace tributary

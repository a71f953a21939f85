// How many arrays a job keeps of each of its chunks, and for what: what a lane's pool must have room for, and what the
// memory formula (server/memory_formula.h) adds up. A pool's block holds any of them.
#pragma once

#include <cstddef>

namespace tributary {

struct ShardJob;

struct ChunkArrays {
  std::size_t state = 1;      // parameters and the optimizer's state
  std::size_t encoded = 0;    // what answers carry, where it is not the parameters themselves
  std::size_t estimate = 0;   // delta encodings: what the workers hold
  std::size_t previous = 0;   // recovery: what nodes held before the last step
  std::size_t sums = 0;       // gate: the sum that waits for a decision
  std::size_t told = 0;       // clocks: answers that nodes have and have not pushed after, one a node
  std::size_t residuals = 0;  // of a resumed job's nodes, until the first round is complete

  // In use as long as nothing is being sent and no snapshot held.
  std::size_t steady() const { return state + encoded + estimate + previous + sums + told; }
  // A second copy of what a snapshot has, which its writer holds while all of it is stepped.
  std::size_t snapshot() const { return state + estimate; }
  // The bound: one copy for what runs, one for what a snapshot still holds, and of what answers carry one more that is
  // being sent, or read by a worker on this machine that is slow.
  std::size_t most() const { return steady() + snapshot() + encoded + previous + 1 + residuals; }
};

ChunkArrays chunk_arrays(const ShardJob& job);

}  // namespace tributary

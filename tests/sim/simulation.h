// The synchronous round logic under a virtual clock and a bad network: real ClientCores and ShardCores, real codec,
// simulated trainers. Every run is checked against a reference that adds the ranks' gradients in tree order, one after
// another, in one process, and must end in the same bits.
//
// Checked at every event: parameters delivered to a node are the reference's bits of that version; versions of a chunk
// grow by one; bytes in flight respect the window; frames held respect nodes x shard; snapshots captured copy-on-write
// still have the reference's bits of their round when they are read much later; no message is refused; the run ends
// within a bounded virtual time.
#pragma once

#include <cstdint>
#include <string>

namespace tributary::sim {

// What a seed turned into; printed with a failure.
struct Scenario {
  std::uint64_t seed = 0;
  std::uint32_t nodes = 1, ranks_per_node = 1, shards = 1, lanes = 1;
  std::uint64_t parameters = 0, chunk_elements = 0, rounds = 0;
  std::string optimizer, push, pull;
  double lose = 0.0, duplicate = 0.0;
  std::uint64_t window_bytes = 0;
  std::string describe() const;
};

struct Outcome {
  bool ok = false;
  std::string failure;  // the first broken invariant
  Scenario scenario;
  std::uint64_t events = 0, virtual_ns = 0, messages = 0, resends = 0, snapshots = 0;
};

// Planted bugs, to show that the invariants can fail.
enum class Mutation {
  kNone,
  kArrivalOrderSum,   // the reference adds nodes in another order than the tree
  kForgetDuplicates,  // a second copy of a push is counted as another node's
  kWriteInPlace,      // answers in flight alias the buffer of the next step
};

Scenario scenario_of(std::uint64_t seed);
Outcome run(std::uint64_t seed, Mutation mutation = Mutation::kNone);

}  // namespace tributary::sim

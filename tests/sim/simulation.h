// The round logic under a virtual clock and a bad network: real ClientCores and ShardCores, real codec, simulated
// trainers. Synchronous runs are checked against a reference that adds the ranks' gradients in tree order, one after
// another, in one process, and must end in the same bits; runs with clocks (modes ssp and async; nodes of different
// speed) against a replay of the order in which the servers applied the pushes (clocks_judge.h).
//
// Checked at every event: parameters delivered to a node are the reference's bits of that version, with clocks those of
// the replay, holding the reader's own pushes and all that the bound demands, and each push once; a node's versions of
// a chunk grow by one; bytes in flight respect the window; frames held and answers withheld respect nodes x chunks;
// snapshots captured copy-on-write still have the bits of their round when they are read much later; no message is
// refused; the run ends within a bounded virtual time. Some runs with clocks are cut off, and go on from their newest
// snapshot.
#pragma once

#include <cstdint>
#include <string>

#include "common/config.h"

namespace tributary::sim {

// What a seed turned into; printed with a failure.
struct Scenario {
  std::uint64_t seed = 0;
  std::uint32_t nodes = 1, ranks_per_node = 1, shards = 1, lanes = 1;
  std::uint64_t parameters = 0, chunk_elements = 0, rounds = 0;
  std::string optimizer, push, pull;
  double lose = 0.0, duplicate = 0.0;
  std::uint64_t window_bytes = 0;
  // sync, ssp or async; what follows is for the latter two.
  std::string mode = "sync";
  std::uint64_t staleness = 0;
  bool restarts = false;
  std::uint64_t cut_after_events = 0;
  // Synchronous rounds: common/gate_rules.h. 0 and "none": no gate.
  double clip_norm = 0.0;
  std::string loss_scale = "none";
  GateConfig gate() const;
  bool gated() const { return clip_norm > 0.0 || loss_scale != "none"; }
  // How many times as long as others a node takes for its work.
  std::uint64_t slowness(std::uint32_t node) const;
  std::string describe() const;
};

struct Outcome {
  bool ok = false;
  std::string failure;  // the first broken invariant
  Scenario scenario;
  std::uint64_t events = 0, virtual_ns = 0, messages = 0, resends = 0, snapshots = 0, withheld = 0;
  std::uint64_t clipped = 0, skipped = 0;  // rounds, by a gate
  bool restarted = false;                  // from a snapshot
};

// Planted bugs, to show that the invariants can fail.
enum class Mutation {
  kNone,
  kArrivalOrderSum,   // the reference adds nodes in another order than the tree
  kForgetDuplicates,  // a second copy of a push is counted as another node's
  kWriteInPlace,      // answers in flight alias the buffer of the next step
  kLooseBound,        // clocks: answers go out a clock too early
  kApplyTwice,        // clocks: a second copy of a push is taken for the next one
  kForgetClocks,      // clocks: a restored chunk does not know which pushes it has
  kBeforeTheGate,     // gate: a lane decides by itself, by its own chunks
  // Of whole clusters (cluster_simulation.h):
  kSecondCopy,        // a second copy of a push counts as one of the next round
  kLostStop,          // a server is told only once that a view is over
  kUnsyncedSnapshot,  // a snapshot's record is written before its files are synced
  kUnsyncedRegistry,  // the coordinator's records are not synced
  kOldNodes,          // elastic: a server goes on with the nodes of the view before
  kOldRing,           // elastic: a ring keeps rounds that other nodes took part in, and nobody asks
  kFirstScale,        // elastic, with a gate: ranks that attach begin with the job's first loss scale
  kLostResiduals,     // elastic: what another number of nodes had not said yet is dropped
  kForgottenWords,    // a node begins a view as if it had said all that it had to say
  kMixedStates,       // what the ranks of a node keep is mixed up
  kFailedDrop,        // a view opens on a server that could not drop what an earlier view has left
  kFarSnapshot,       // snapshots are named by rounds alone, whoever else needs one
  kForgottenJob,      // the coordinator takes no notice of what stores have of jobs that its registry does not know
  kNoSpareSlot,       // a rank writes a gradient where a round lies in the ring that is still kept
  kUnsharedPrevious,  // encoded parameters of the round before are told without a share in their buffer
  kEmptiedPool,       // a job's pool is given back while workers may still read what they were told of it
  // Inside the lanes' own code (tests/sim/plant.py):
  kParkedTooNew,       // a lane says of what it keeps that it is newer than it is
  kUnparked,           // a lane says that it keeps nothing, and lets it go
  kUnfinishedStop,     // a stop does not wait for residuals
  kForgottenClocks,    // a restored chunk does not know its nodes' clocks
  kForgottenFacts,     // a lane that opens does not say again what is not decided
  kForgottenEstimate,  // a restored chunk does not know what nodes believe its parameters to be
  kForgottenQuery,     // queries are not answered
  kDroppedResend,      // nobody is asked to send again
  kOtherWeight,        // a push that is made again does not have its own number of samples
  kForgottenDecision,  // a node does not keep what was decided about a round
  kDroppedResidual,    // a node begins without the residual that a server restored
  kForgottenRedo,      // a node does not push again what servers lack
};

Scenario scenario_of(std::uint64_t seed);
Outcome run(std::uint64_t seed, Mutation mutation = Mutation::kNone);

}  // namespace tributary::sim

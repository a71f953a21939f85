// Planted bugs that the cluster simulator must find within its first 1000 seeds. Not built with sanitizers: what a seed
// finds is the same there, and takes minutes.
#include <doctest/doctest.h>

#include <cstdint>

#include "tests/sim/cluster_simulation.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kSeedsForMutation = 1000;
// Seeds for bugs that show only where nodes lack the parameters of a view's start, or are stopped at a rare moment.
constexpr std::uint64_t kSeedsForRare = 6000;

// The first seed that finds the planted bug; `seeds` if none does.
std::uint64_t first_seed_that_finds(Mutation mutation, std::uint64_t seeds = kSeedsForMutation) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    if (!run_cluster(seed, mutation).ok) return seed;
  }
  return seeds;
}

}  // namespace

TEST_CASE("a sum in another order than the tree's is found") {
  CHECK(first_seed_that_finds(Mutation::kArrivalOrderSum) < kSeedsForMutation);
}

TEST_CASE("a second copy of a push that is taken for another node's is found") {
  CHECK(first_seed_that_finds(Mutation::kForgetDuplicates) < kSeedsForMutation);
}

TEST_CASE("frames that are added before their round is complete, and counted wrong, are found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenSibling) < kSeedsForMutation);
  CHECK(first_seed_that_finds(Mutation::kSumAsOne) < kSeedsForMutation);
}

TEST_CASE("a step that writes into a buffer somebody still reads is found") {
  CHECK(first_seed_that_finds(Mutation::kWriteInPlace) < kSeedsForMutation);
}

TEST_CASE("a bound on staleness that is a clock too loose is found") {
  CHECK(first_seed_that_finds(Mutation::kLooseBound) < kSeedsForMutation);
}

TEST_CASE("a push with a clock that is applied twice is found") {
  CHECK(first_seed_that_finds(Mutation::kApplyTwice) < kSeedsForMutation);
}

TEST_CASE("a lane that does not wait for the gate is found") {
  CHECK(first_seed_that_finds(Mutation::kBeforeTheGate) < kSeedsForMutation);
}

TEST_CASE("the end of a view that is told to a server only once is found") {
  CHECK(first_seed_that_finds(Mutation::kLostStop) < kSeedsForMutation);
}

TEST_CASE("a snapshot whose files are not synced before its record is found") {
  CHECK(first_seed_that_finds(Mutation::kUnsyncedSnapshot) < kSeedsForMutation);
}

TEST_CASE("a registry that is not synced is found") {
  CHECK(first_seed_that_finds(Mutation::kUnsyncedRegistry) < kSeedsForMutation);
}

TEST_CASE("a server that goes on with the nodes of the view before is found") {
  CHECK(first_seed_that_finds(Mutation::kOldNodes) < kSeedsForMutation);
}

TEST_CASE("pushes that are made again for rounds with other nodes are found") {
  CHECK(first_seed_that_finds(Mutation::kOldRing) < kSeedsForMutation);
}

TEST_CASE("ranks of an elastic job that begin with another loss scale than their round's are found") {
  CHECK(first_seed_that_finds(Mutation::kFirstScale) < kSeedsForMutation);
}

TEST_CASE("what nodes had not said yet and is lost when their number changes is found") {
  CHECK(first_seed_that_finds(Mutation::kLostResiduals) < kSeedsForMutation);
}

TEST_CASE("a node that has forgotten what it has not said is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenWords) < kSeedsForMutation);
}

TEST_CASE("a push that is made again with another number of samples is found") {
  CHECK(first_seed_that_finds(Mutation::kOtherWeight) < kSeedsForMutation);
  CHECK(first_seed_that_finds(Mutation::kForgottenSettings) < kSeedsForMutation);
  CHECK(first_seed_that_finds(Mutation::kForgottenCopies) < kSeedsForMutation);
}

TEST_CASE("ranks that get each other's state back are found") {
  CHECK(first_seed_that_finds(Mutation::kMixedStates) < kSeedsForMutation);
}

TEST_CASE("values of ranks that nobody knows any more in the next view are missed") {
  CHECK(first_seed_that_finds(Mutation::kForgottenAnswers) < kSeedsForMutation);
}

TEST_CASE("a view that opens on a server with what it could not drop of an earlier one is found") {
  CHECK(first_seed_that_finds(Mutation::kFailedDrop) < kSeedsForMutation);
}

TEST_CASE("a schedule by rounds that keeps the snapshots that nodes need from being named is found") {
  CHECK(first_seed_that_finds(Mutation::kFarSnapshot) < kSeedsForMutation);
}

TEST_CASE("a coordinator that begins a job anew which stores have snapshots of is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenJob) < kSeedsForMutation);
}

TEST_CASE("parameters that are told without a share, and read when they are others', are found") {
  CHECK(first_seed_that_finds(Mutation::kUnsharedPrevious, kSeedsForRare) < kSeedsForRare);
}

TEST_CASE("a push that its node writes over before a server has added it is found") {
  CHECK(first_seed_that_finds(Mutation::kWritesAtReceipt) < kSeedsForMutation);
}

TEST_CASE("a residual that its node writes over before a server has written it is found") {
  CHECK(first_seed_that_finds(Mutation::kLentResidual) < kSeedsForMutation);
}

TEST_CASE("a pool that is emptied under workers that have not read what they were told is found") {
  CHECK(first_seed_that_finds(Mutation::kEmptiedPool, kSeedsForRare) < kSeedsForRare);
}

// ---- Inside the lanes' own code ----

TEST_CASE("a lane that says of what it keeps that it is newer than it is is found") {
  CHECK(first_seed_that_finds(Mutation::kParkedTooNew) < kSeedsForMutation);
}

TEST_CASE("a lane that lets go what the next view should find is found") {
  CHECK(first_seed_that_finds(Mutation::kUnparked) < kSeedsForMutation);
}

TEST_CASE("a stop that does not wait for residuals is found") {
  CHECK(first_seed_that_finds(Mutation::kUnfinishedStop) < kSeedsForMutation);
}

TEST_CASE("a restored chunk that does not know its nodes' clocks is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenClocks) < kSeedsForMutation);
}

TEST_CASE("a lane that does not say again what is not decided is found") {
  // Rare: nodes that push again bring the decision, too.
  CHECK(first_seed_that_finds(Mutation::kForgottenFacts, 5 * kSeedsForMutation) < 5 * kSeedsForMutation);
}

TEST_CASE("a restored chunk that does not know what nodes believe is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenEstimate) < kSeedsForMutation);
}

TEST_CASE("a lane that answers no queries is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenQuery) < kSeedsForMutation);
}

TEST_CASE("a lane that asks nobody to send again is found") {
  CHECK(first_seed_that_finds(Mutation::kDroppedResend) < kSeedsForMutation);
}

TEST_CASE("a node that does not keep what was decided is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenDecision) < kSeedsForMutation);
}

TEST_CASE("a node that drops the residual that a server restored is found") {
  CHECK(first_seed_that_finds(Mutation::kDroppedResidual) < kSeedsForMutation);
}

TEST_CASE("a node that does not push again what servers lack is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenRedo) < kSeedsForMutation);
}

// ---- What servers load ----

TEST_CASE("a server that loads again what it has loaded for a view that never began is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenLoad) < kSeedsForMutation);
}

TEST_CASE("a view that goes on with what was loaded of another round is found") {
  CHECK(first_seed_that_finds(Mutation::kOtherLoad, kSeedsForRare) < kSeedsForRare);
}

TEST_CASE("a view that goes on with what was loaded for other nodes is found") {
  CHECK(first_seed_that_finds(Mutation::kOtherNodesLoad, 5 * kSeedsForMutation) < 5 * kSeedsForMutation);
}

TEST_CASE("a server that tells of snapshots which are just being dropped is found") {
  CHECK(first_seed_that_finds(Mutation::kEarlyTold, 5 * kSeedsForMutation) < 5 * kSeedsForMutation);
}

TEST_CASE("a chunk that is loaded for another view is found") {
  CHECK(first_seed_that_finds(Mutation::kStrayChunk, kSeedsForRare) < kSeedsForRare);
}

// ---- Inside the coordinator's, and the readers' ----

TEST_CASE("a checkpoint that is finished too early is found") {
  CHECK(first_seed_that_finds(Mutation::kSealedEarly) < kSeedsForMutation);
}

TEST_CASE("a restored job whose older record counts is found") {
  // Rare: the coordinator has to come again between a restore and the job's first snapshot.
  CHECK(first_seed_that_finds(Mutation::kOlderRecord, 5 * kSeedsForMutation) < 5 * kSeedsForMutation);
}

TEST_CASE("an all-reduce job that begins anew because its checkpoints are gone is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenRound) < kSeedsForMutation);
}

TEST_CASE("an all-reduce job that looks at one node's checkpoints only is found") {
  CHECK(first_seed_that_finds(Mutation::kNodeZeroOnly) < kSeedsForMutation);
}

TEST_CASE("a ring whose ends do not hear of each other is found") {
  CHECK(first_seed_that_finds(Mutation::kTornRing) < kSeedsForMutation);
}

TEST_CASE("a replica that does not go on with its own step is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenStep) < kSeedsForMutation);
}

TEST_CASE("a view that its servers close before nodes have its last answers is found") {
  CHECK(first_seed_that_finds(Mutation::kHastyEnd, kSeedsForRare) < kSeedsForRare);
}

TEST_CASE("a server that lets go of what it keeps between views is found") {
  CHECK(first_seed_that_finds(Mutation::kKeptUnsaved) < kSeedsForMutation);
}

TEST_CASE("a server that may go before all have said what they keep is found") {
  CHECK(first_seed_that_finds(Mutation::kHastyDrain) < kSeedsForMutation);
}

TEST_CASE("a server that goes without a word about what is lost is found") {
  CHECK(first_seed_that_finds(Mutation::kSilentLoss) < kSeedsForMutation);
}

TEST_CASE("a view that servers hear of before its record is saved is found") {
  CHECK(first_seed_that_finds(Mutation::kUnrecordedView) < kSeedsForMutation);
}

TEST_CASE("a snapshot that is told before the record is saved that has it is found") {
  CHECK(first_seed_that_finds(Mutation::kUnrecordedCommit) < kSeedsForMutation);
}

TEST_CASE("what a worker holds of one rank and gives to another is found") {
  CHECK(first_seed_that_finds(Mutation::kHeldOfAnother, kSeedsForRare) < kSeedsForRare);
}

TEST_CASE("a server that does not look at what a node has is found") {
  CHECK(first_seed_that_finds(Mutation::kFalselySame) < kSeedsForMutation);
}

TEST_CASE("a node that says that it has what it has not is found") {
  CHECK(first_seed_that_finds(Mutation::kUncopied) < kSeedsForMutation);
}

TEST_CASE("a node that never asks for an answer is found") {
  CHECK(first_seed_that_finds(Mutation::kForgottenOverdue) < kSeedsForMutation);
}

TEST_CASE("a reader that does not look at checksums is found") {
  CHECK(first_seed_that_finds(Mutation::kUncheckedArrays) < kSeedsForMutation);
}

}  // namespace tributary::sim

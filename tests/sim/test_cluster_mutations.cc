// Planted bugs that the cluster simulator must find. Not built with sanitizers: what a seed finds is the same there.
#include <doctest/doctest.h>

#include <cstdint>

#include "tests/sim/cluster_simulation.h"

namespace tributary::sim {
namespace {

// Most bugs need less than 1,000 seeds. The rare ones show only where nodes lack the parameters of a view's start, or are
// stopped at one moment.
constexpr std::uint64_t kSeeds = 10'000;

// Is the planted bug found? `known`: the first seed that found it when this was written, which is tried first. After a
// change of the protocol or of the scenarios it may be another one, and the search takes minutes: write here what it says.
bool finds(Mutation mutation, std::uint64_t known) {
  const auto finds_it = [&](std::uint64_t seed) { return !run_cluster(seed, mutation).ok && run_cluster(seed).ok; };
  if (finds_it(known)) return true;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    if (!finds_it(seed)) continue;
    MESSAGE("mutation " << static_cast<int>(mutation) << " was known by seed " << known << ", and is found by seed "
                        << seed);
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a sum in another order than the tree's is found") {
  CHECK(finds(Mutation::kArrivalOrderSum, 8));
}

TEST_CASE("a second copy of a push that is taken for another node's is found") {
  CHECK(finds(Mutation::kForgetDuplicates, 59));
}

TEST_CASE("frames that are added before their round is complete, and counted wrong, are found") {
  CHECK(finds(Mutation::kForgottenSibling, 346));
  CHECK(finds(Mutation::kSumAsOne, 346));
}

TEST_CASE("a step that writes into a buffer somebody still reads is found") {
  CHECK(finds(Mutation::kWriteInPlace, 0));
}

TEST_CASE("a bound on staleness that is a clock too loose is found") {
  CHECK(finds(Mutation::kLooseBound, 2));
}

TEST_CASE("a push with a clock that is applied twice is found") {
  CHECK(finds(Mutation::kApplyTwice, 108));
}

TEST_CASE("a lane that does not wait for the gate is found") {
  CHECK(finds(Mutation::kBeforeTheGate, 6));
}

TEST_CASE("the end of a view that is told to a server only once is found") {
  CHECK(finds(Mutation::kLostStop, 159));
}

TEST_CASE("a snapshot whose files are not synced before its record is found") {
  CHECK(finds(Mutation::kUnsyncedSnapshot, 0));
}

TEST_CASE("a registry that is not synced is found") {
  CHECK(finds(Mutation::kUnsyncedRegistry, 10));
}

TEST_CASE("a server that goes on with the nodes of the view before is found") {
  CHECK(finds(Mutation::kOldNodes, 8));
}

TEST_CASE("pushes that are made again for rounds with other nodes are found") {
  CHECK(finds(Mutation::kOldRing, 406));
}

TEST_CASE("ranks of an elastic job that begin with another loss scale than their round's are found") {
  CHECK(finds(Mutation::kFirstScale, 105));
}

TEST_CASE("what nodes had not said yet and is lost when their number changes is found") {
  CHECK(finds(Mutation::kLostResiduals, 16));
}

TEST_CASE("a node that has forgotten what it has not said is found") {
  CHECK(finds(Mutation::kForgottenWords, 264));
}

TEST_CASE("a push that is made again with another number of samples is found") {
  CHECK(finds(Mutation::kOtherWeight, 22));
  CHECK(finds(Mutation::kForgottenSettings, 76));
  CHECK(finds(Mutation::kForgottenCopies, 47));
}

TEST_CASE("ranks that get each other's state back are found") {
  CHECK(finds(Mutation::kMixedStates, 2));
}

TEST_CASE("values of ranks that nobody knows any more in the next view are missed") {
  CHECK(finds(Mutation::kForgottenAnswers, 8));
}

TEST_CASE("a view that opens on a server with what it could not drop of an earlier one is found") {
  CHECK(finds(Mutation::kFailedDrop, 35));
}

TEST_CASE("a schedule by rounds that keeps the snapshots that nodes need from being named is found") {
  CHECK(finds(Mutation::kFarSnapshot, 22));
}

TEST_CASE("parameters that are told without a share, and read when they are others', are found") {
  CHECK(finds(Mutation::kUnsharedPrevious, 3443));
}

TEST_CASE("a push that its node writes over before a server has added it is found") {
  CHECK(finds(Mutation::kWritesAtAck, 15));
}

TEST_CASE("a residual that its node writes over before a server has written it is found") {
  CHECK(finds(Mutation::kLentResidual, 73));
}

TEST_CASE("a pool that is emptied under workers that have not read what they were told is found") {
  CHECK(finds(Mutation::kEmptiedPool, 3));
}

// ---- Inside the lanes' own code ----

TEST_CASE("a lane that says of what it keeps that it is newer than it is is found") {
  CHECK(finds(Mutation::kParkedTooNew, 3));
}

TEST_CASE("a lane that lets go what the next view should find is found") {
  CHECK(finds(Mutation::kUnparked, 3));
}

TEST_CASE("a stop that does not wait for residuals is found") {
  CHECK(finds(Mutation::kUnfinishedStop, 16));
}

TEST_CASE("a restored chunk that does not know its nodes' clocks is found") {
  CHECK(finds(Mutation::kForgottenClocks, 108));
}

TEST_CASE("a lane that does not say again what is not decided is found") {
  CHECK(finds(Mutation::kForgottenFacts, 6453));
}

TEST_CASE("a restored chunk that does not know what nodes believe is found") {
  CHECK(finds(Mutation::kForgottenEstimate, 16));
}

TEST_CASE("a lane that answers no queries is found") {
  CHECK(finds(Mutation::kForgottenQuery, 10));
}

TEST_CASE("a lane that asks nobody to send again is found") {
  CHECK(finds(Mutation::kDroppedResend, 27));
}

TEST_CASE("a node that does not keep what was decided is found") {
  CHECK(finds(Mutation::kForgottenDecision, 77));
}

TEST_CASE("a node that drops the residual that a server restored is found") {
  CHECK(finds(Mutation::kDroppedResidual, 16));
}

TEST_CASE("a node that does not push again what servers lack is found") {
  CHECK(finds(Mutation::kForgottenRedo, 22));
}

// ---- What servers load ----

TEST_CASE("a server that loads again what it has loaded for a view that never began is found") {
  CHECK(finds(Mutation::kForgottenLoad, 110));
}

// ---- Inside the coordinator's, and the readers' ----

TEST_CASE("a checkpoint that is finished too early is found") {
  CHECK(finds(Mutation::kSealedEarly, 11));
}

TEST_CASE("a restored job whose older record counts is found") {
  CHECK(finds(Mutation::kOlderRecord, 1019));
}

TEST_CASE("an all-reduce job that begins anew because its checkpoints are gone is found") {
  CHECK(finds(Mutation::kForgottenRound, 234));
}

TEST_CASE("an all-reduce job that looks at one node's checkpoints only is found") {
  CHECK(finds(Mutation::kNodeZeroOnly, 215));
}

TEST_CASE("a ring whose ends do not hear of each other is found") {
  CHECK(finds(Mutation::kTornRing, 72));
}

TEST_CASE("a replica that does not go on with its own step is found") {
  CHECK(finds(Mutation::kForgottenStep, 7));
}

TEST_CASE("a server that lets go of what it keeps between views is found") {
  CHECK(finds(Mutation::kKeptUnsaved, 58));
}

TEST_CASE("a server that may go before all have said what they keep is found") {
  CHECK(finds(Mutation::kHastyDrain, 538));
}

TEST_CASE("a server that goes without a word about what is lost is found") {
  CHECK(finds(Mutation::kSilentLoss, 243));
}

TEST_CASE("a view that servers hear of before its record is saved is found") {
  CHECK(finds(Mutation::kUnrecordedView, 12));
}

TEST_CASE("a snapshot that is told before the record is saved that has it is found") {
  CHECK(finds(Mutation::kUnrecordedCommit, 8266));
}

TEST_CASE("what a worker holds of one rank and gives to another is found") {
  CHECK(finds(Mutation::kHeldOfAnother, 3233));
}

TEST_CASE("a server that does not look at what a node has is found") {
  CHECK(finds(Mutation::kFalselySame, 6));
}

TEST_CASE("a node that says that it has what it has not is found") {
  CHECK(finds(Mutation::kUncopied, 6));
}

TEST_CASE("a node that never asks for an answer is found") {
  CHECK(finds(Mutation::kForgottenOverdue, 10));
}

// ---- Two jobs on the same servers ----

TEST_CASE("a lane that takes a message of one job for another's is found") {
  CHECK(finds(Mutation::kOthersChunk, 9));
}

TEST_CASE("a commit that drops what the store has of another job is found") {
  CHECK(finds(Mutation::kOthersSnapshots, 3));
}

TEST_CASE("a worker whose loss ends the view of a job that it has no part in is found") {
  CHECK(finds(Mutation::kOthersWorker, 3));
}

TEST_CASE("a job that is taken for the one with a shorter name is found") {
  CHECK(finds(Mutation::kOthersName, 9));
}

TEST_CASE("a server that lets go of what it keeps of another job is found") {
  CHECK(finds(Mutation::kOthersKept, 323));
}

TEST_CASE("an id that two jobs get is found") {
  CHECK(finds(Mutation::kOthersId, 9));
}

TEST_CASE("a checkpoint with ranks' states of another round is found") {
  CHECK(finds(Mutation::kStatesOfAnother, 366));
}

TEST_CASE("a server that keeps no copies of the coordinator's records is found") {
  CHECK(finds(Mutation::kNoCopies, 1));
}

TEST_CASE("a coordinator that has moved with the editions and views of before is found") {
  CHECK(finds(Mutation::kSameEditions, 2762));
}

TEST_CASE("a coordinator that stays when another has taken its place is found") {
  CHECK(finds(Mutation::kStubbornHolder, 220));
}

TEST_CASE("two coordinators of one term are found") {
  CHECK(finds(Mutation::kSameTerm, 509));
}

TEST_CASE("a snapshot that is committed before its parts have copies is found") {
  CHECK(finds(Mutation::kCopyUnawaited, 4157));
}

TEST_CASE("a copy that a server does not have, and speaks of, is found") {
  CHECK(finds(Mutation::kFailedCopy, 248));
  CHECK(finds(Mutation::kOwnForCopy, 611));
}

TEST_CASE("large parts on one disk alone are found") {
  CHECK(finds(Mutation::kPartsAlone, 341));
}

TEST_CASE("copies that stay when their snapshots go are found") {
  CHECK(finds(Mutation::kCopiesStay, 158));
}

TEST_CASE("a copy that counts before it is on the disk is found") {
  CHECK(finds(Mutation::kUnsyncedCopy, 0));
}

TEST_CASE("a view that does not begin with copies is found") {
  CHECK(finds(Mutation::kOwnPartsAlone, 323));
  CHECK(finds(Mutation::kNoFill, 323));
  CHECK(finds(Mutation::kDamagedPart, 694));
}

TEST_CASE("a reader that does not look at checksums is found") {
  CHECK(finds(Mutation::kUncheckedArrays, 265));
}

}  // namespace tributary::sim

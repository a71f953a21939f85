// Planted bugs that the cluster simulator must find. Not built with sanitizers: what a seed finds is the same there.
#include <doctest/doctest.h>

#include <cstdint>
#include <iterator>

#include "tests/sim/cluster_simulation.h"

namespace tributary::sim {
namespace {

// Most bugs need less than 1,000 seeds. The rare ones show only where nodes lack the parameters of a view's start, or are
// stopped at one moment.
constexpr std::uint64_t kSeeds = 10'000;

// Each planted bug (tests/sim/mutation.h describes it), and the first seed that found it when this was written, which is
// tried first. After a change of the protocol or of the scenarios it may be another one, and the search takes minutes:
// write here what it says.
constexpr struct {
  Mutation mutation;
  std::uint64_t known;
} kBugs[] = {
    {Mutation::kLostStop, 159},         {Mutation::kUnsyncedSnapshot, 0},   {Mutation::kUnsyncedRegistry, 77},
    {Mutation::kOldNodes, 8},           {Mutation::kOldRing, 406},          {Mutation::kFirstScale, 105},
    {Mutation::kLostResiduals, 16},     {Mutation::kForgottenWords, 264},   {Mutation::kForgottenAnswers, 8},
    {Mutation::kMixedStates, 2},        {Mutation::kFailedDrop, 675},       {Mutation::kFarSnapshot, 22},
    {Mutation::kWritesAtAck, 15},       {Mutation::kNoCopies, 1},           {Mutation::kUnsharedPrevious, 3443},
    {Mutation::kEmptiedPool, 3},        {Mutation::kArrivalOrderSum, 8},    {Mutation::kForgetDuplicates, 59},
    {Mutation::kForgottenSibling, 346}, {Mutation::kSumAsOne, 346},         {Mutation::kWriteInPlace, 0},
    {Mutation::kLooseBound, 2},         {Mutation::kApplyTwice, 108},       {Mutation::kBeforeTheGate, 6},
    {Mutation::kParkedTooNew, 3},       {Mutation::kUnparked, 3},           {Mutation::kUnfinishedStop, 16},
    {Mutation::kForgottenClocks, 108},  {Mutation::kForgottenFacts, 6453},  {Mutation::kForgottenEstimate, 16},
    {Mutation::kForgottenQuery, 10},    {Mutation::kDroppedResend, 27},     {Mutation::kOtherWeight, 22},
    {Mutation::kForgottenCopies, 47},   {Mutation::kForgottenSettings, 76}, {Mutation::kForgottenDecision, 77},
    {Mutation::kDroppedResidual, 16},   {Mutation::kForgottenRedo, 22},     {Mutation::kSealedEarly, 11},
    {Mutation::kCopyUnawaited, 4157},   {Mutation::kFailedCopy, 248},       {Mutation::kOwnForCopy, 611},
    {Mutation::kOwnPartsAlone, 323},    {Mutation::kNoFill, 323},           {Mutation::kDamagedPart, 694},
    {Mutation::kUnsyncedCopy, 0},       {Mutation::kPartsAlone, 636},       {Mutation::kStatesOfAnother, 366},
    {Mutation::kSameEditions, 2762},    {Mutation::kStubbornHolder, 220},   {Mutation::kSameTerm, 509},
    {Mutation::kOlderRecord, 1616},     {Mutation::kNodeZeroOnly, 215},     {Mutation::kForgottenRound, 234},
    {Mutation::kTornRing, 72},          {Mutation::kForgottenStep, 7},      {Mutation::kUncheckedArrays, 265},
    {Mutation::kForgottenLoad, 110},    {Mutation::kKeptUnsaved, 58},       {Mutation::kHastyDrain, 538},
    {Mutation::kSilentLoss, 243},       {Mutation::kUnrecordedView, 12},    {Mutation::kUnrecordedCommit, 8266},
    {Mutation::kHeldOfAnother, 3233},   {Mutation::kLentResidual, 73},      {Mutation::kFalselySame, 6},
    {Mutation::kUncopied, 6},           {Mutation::kForgottenOverdue, 10},  {Mutation::kOthersChunk, 3},
    {Mutation::kOthersSnapshots, 3},    {Mutation::kOthersWorker, 3},       {Mutation::kOthersName, 9},
    {Mutation::kOthersId, 9},           {Mutation::kOthersKept, 1496},
};
static_assert(std::size(kBugs) + 1 == static_cast<std::size_t>(Mutation::kEnd));

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

TEST_CASE("every planted bug is found") {
  for (const auto& [mutation, known] : kBugs) CHECK_MESSAGE(finds(mutation, known), static_cast<int>(mutation));
}

}  // namespace tributary::sim

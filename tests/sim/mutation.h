// Planted bugs, to show that the simulator's invariants can fail.
#pragma once

namespace tributary::sim {

enum class Mutation {
  kNone,
  kLostStop,          // a server is told only once that a view is over
  kUnsyncedSnapshot,  // a snapshot's record is written before its files are synced
  kUnsyncedRegistry,  // the coordinator's records are not synced
  kOldNodes,          // elastic: a server goes on with the nodes of the view before
  kOldRing,           // elastic: a ring keeps rounds that other nodes took part in, and nobody asks
  kFirstScale,        // elastic, with a gate: ranks that attach begin with the job's first loss scale
  kLostResiduals,     // elastic: what another number of nodes had not said yet is dropped
  kForgottenWords,    // a node begins a view as if it had said all that it had to say
  kForgottenAnswers,  // nobody says, when a view begins, what ranks gave each other in the one before
  kMixedStates,       // what the ranks of a node keep is mixed up
  kFailedDrop,        // a view opens on a server that could not drop what an earlier view has left
  kFarSnapshot,       // snapshots are named by rounds alone, whoever else needs one
  kWritesAtAck,       // a worker writes over what a server was told, and has still to add
  kNoCopies,          // a server keeps no copies of the coordinator's records
  // Inside the product's own code (tests/sim/plant.py):
  kUnsharedPrevious,   // encoded parameters of the round before are told without a share in their buffer
  kEmptiedPool,        // a job's pool is given back while workers may still read what they were told of it
  kArrivalOrderSum,    // nodes are added in another order than the tree's
  kForgetDuplicates,   // a second copy of a push counts as another node's
  kForgottenSibling,   // a node whose frame is in another's sum is taken for one that has not pushed
  kSumAsOne,           // a sum of several nodes' frames counts as one node's
  kWriteInPlace,       // a step writes into a buffer that somebody still reads
  kLooseBound,         // clocks: answers go out a clock too early
  kApplyTwice,         // clocks: a push that the restored state has is applied again
  kBeforeTheGate,      // gate: a lane decides by itself, by its own chunks
  kParkedTooNew,       // a lane says of what it keeps that it is newer than it is
  kUnparked,           // a lane says that it keeps nothing, and lets it go
  kUnfinishedStop,     // a stop does not wait for residuals
  kForgottenClocks,    // a restored chunk does not know its nodes' clocks
  kForgottenFacts,     // a lane that opens does not say again what is not decided
  kForgottenEstimate,  // a restored chunk does not know what nodes believe its parameters to be
  kForgottenQuery,     // queries are not answered
  kDroppedResend,      // nobody is asked to send again
  kOtherWeight,        // a push that is made again does not have its own number of samples
  kForgottenCopies,    // samples of a tensor that ranks of one replica share are counted by each of them
  kForgottenSettings,  // a node pushes a round again without what its trainers said of its step
  kForgottenDecision,  // a node does not keep what was decided about a round
  kDroppedResidual,    // a node begins without the residual that a server restored
  kForgottenRedo,      // a node does not push again what servers lack
  kSealedEarly,        // a checkpoint is finished when one server has written its part
  kCopyUnawaited,      // a snapshot is committed before its parts have copies
  kFailedCopy,         // a copy that cannot be had counts
  kOwnForCopy,         // a server takes its own part for the copy of another's
  kOwnPartsAlone,      // a view does not begin with copies
  kNoFill,             // a server does not read the copy of its own part
  kDamagedPart,        // nor where its own part is damaged
  kUnsyncedCopy,       // a copy counts before it is on the disk
  kPartsAlone,         // what a job had before a deal goes before its large parts have copies again
  kStatesOfAnother,    // a checkpoint from memory has what ranks kept with the last snapshot
  kSameEditions,       // records keep their editions and views when the coordinator moves
  kStubbornHolder,     // a coordinator stays when another one has a later term
  kSameTerm,           // two servers take the coordinator with one term
  kOlderRecord,        // the record of a job that was restored does not take the place of the one before
  kNodeZeroOnly,       // all-reduce: the coordinator looks at node 0's checkpoints alone
  kForgottenRound,     // all-reduce: the coordinator takes no notice of how far the job was
  kTornRing,           // all-reduce: the last node and the first do not hear how to connect
  kForgottenStep,      // all-reduce: a replica goes on with the step counts of a fresh one
  kUncheckedArrays,    // a chunk's arrays are read without a look at their checksum
  kForgottenLoad,      // what was loaded for a view that never began is loaded again
  kKeptUnsaved,        // what servers keep between two views is not written when one of them goes
  kHastyDrain,         // a server may go before all servers have said what they keep
  kSilentLoss,         // a server goes without a word about rounds that it alone had
  kUnrecordedView,     // servers hear of a view before its record is saved
  kUnrecordedCommit,   // a snapshot is told before the record is saved that has it
  kHeldOfAnother,      // what a worker holds of its ranks is given to whatever rank its machine has now
  kLentResidual,       // a server keeps for a snapshot what a node will write over
  kFalselySame,        // a server says of any values that they are the parameters
  kUncopied,           // a node says that it has what only an earlier view had
  kForgottenOverdue,   // nobody asks for an answer that does not come
  kOthersChunk,        // two jobs: a lane looks up whom a message is for by its view alone
  kOthersSnapshots,    // two jobs: a commit drops the older snapshots of all jobs
  kOthersWorker,       // two jobs: the loss of a worker ends the views of all jobs
  kOthersName,         // two jobs: a name that begins as another job's is taken for that one
  kOthersId,           // two jobs: both get the same id
  kOthersKept,         // two jobs: a server that lets go of what it keeps of one lets go of the other's, too
  kEnd
};

}  // namespace tributary::sim

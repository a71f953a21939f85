# The attach protocol: trainer <-> worker daemon over a Unix socket; gradients and parameters are in shared memory, not here.
# The rules are those of data.capnp.
@0xd7f55c16773d87ef;

using Cxx = import "/capnp/c++.capnp";
using Records = import "records.capnp";
using Control = import "control.capnp";
$Cxx.namespace("tributary::wire");

struct AttachMessage {
  protocol @0 :UInt16;
  union {
    request @1 :AttachRequest;
    reply @2 :AttachReply;
    initialValues @3 :Void;  # trainer of rank 0: the parameters in the node region are the initial ones
    detach @4 :Detach;
    detachReply @5 :Void;
    stopped @6 :AttachStopped;
    error @7 :AttachError;
    rankState @8 :RankState;
    figures @9 :Control.Figures;  # trainer -> worker: of its rounds since its previous report
    waits @10 :AttachWaits;
    heldState @11 :RankState;  # of every round, for the process that takes the rank's place on this node
    sharedValues @12 :SharedValues;
  }
}

# trainer -> worker; ranks as torchrun names them. The descriptor that came with an earlier reply's `redo` may travel with it.
struct AttachRequest {
  jobJson @0 :Text;
  rank @1 :UInt32;
  localRank @2 :UInt32;
  worldSize @3 :UInt32 = 1;
  localWorldSize @4 :UInt32 = 1;
  nodeRank @5 :UInt32;
  pid @6 :Int32;
  tensors @7 :List(Records.Tensor);
  device @8 :Text;  # UUID of the GPU that this rank's gradients and parameters are on; empty: in host memory
  gradientsMove @9 :Bool;  # the trainer can write each round's gradient elsewhere
  computesWith @10 :Text;  # the library that computes gradients, and which of its kernels; empty: not known
  modelRank @11 :UInt32;  # which part of the model it holds
  hearsWaits @12 :Bool;  # it knows AttachWaits
  livedIn @13 :UInt64;  # the job whose state of the last view this process has; 0: none
}

# worker -> trainer. File descriptors travel with it: node region, gradient region, one eventfd per lane. With `redo`, also the pushes
# of the node: the trainer holds them and returns them when it attaches again.
struct AttachReply {
  job @0 :UInt64;
  view @1 :UInt32;
  resume @2 :Bool;
  resumeRound @3 :UInt64;
  layout @4 :Records.Layout;  # without tensors: the trainer declared them
  lanes @5 :UInt16 = 1;  # worker lanes: how many eventfds
  nodeRegionBytes @6 :UInt64;
  gradientRegionBytes @7 :UInt64;
  # The rank's gradients and the parameters in device memory, lent by CUDA IPC. device empty: they are in the regions.
  # The regions hold words and initial values in both cases.
  device @8 :Text;  # as in the request
  gradientHandle @9 :Data;
  parameterHandle @10 :Data;
  deviceBytes @11 :UInt64;  # of each
  redo @12 :Bool;
  rank @13 :UInt32;  # in this view
  worldSize @14 :UInt32 = 1;
  nodeRank @15 :UInt32;
  state @16 :Data;  # what the rank gave to be kept with resumeRound
  # The place of the rank's gradients in the memory that comes with `redo`: round r's lies at ringOffset + (r mod
  # ringSlots) * ringSlotBytes, as flat as in a gradient region. ringSlots 0: they are in the gradient region.
  ringOffset @17 :UInt64;
  ringSlotBytes @18 :UInt64;
  ringSlots @19 :UInt32;
  modelRanks @20 :List(UInt32);  # of all ranks of the view; empty: each holds the whole model
  heldState @21 :Data;  # what the rank, or the one in its place before, gave as heldState of resumeRound
  first @22 :FirstState;
}

enum FirstState {  # what one rank keeps of resumeRound, for those that have nothing
  none @0;  # no rank has any
  comes @1;  # as rankState, to the ranks that wait for it
  given @2;  # by this rank
}

struct AttachWaits {  # worker -> trainer, now and then while it attaches: the members that are missing
  missing @0 :Text;
  progress @1 :UInt64;  # of JobWaits
}

# trainer -> worker: to be kept with the state after a round; worker -> trainer: what the first rank kept. The large part that it
# speaks of (common/wire/state_head.h) travels with it as a descriptor of sealed memory.
struct RankState {
  round @0 :UInt64;
  state @1 :Data;
}

# trainer -> worker: the rank's own value under a key, and, after an attach, answers that it knows. worker -> trainer: an answer.
struct SharedValues {
  round @0 :UInt64;
  index @1 :UInt32;
  complete @2 :Bool;  # the values of all ranks, by rank
  values @3 :List(Control.RankValue);
}

struct Detach {  # trainer -> worker
  kind @0 :Control.LeaveKind;
  message @1 :Text;
}

struct AttachStopped {  # worker -> trainer: the job's view is over
  kind @0 :Control.StopKind = restart;
  round @1 :UInt64;
  reason @2 :Text;
}

struct AttachError {  # worker -> trainer
  code @0 :UInt16;  # ErrorCode
  message @1 :Text;
}

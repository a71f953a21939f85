# The servers' records on disk. Every record stands behind an XXH3-64 of its bytes (server/store/records.h) and begins with the format
# number, so that any version of the program recognises a record of any other.
@0xde7358c163e1c002;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tributary::record");

struct Tensor {
  name @0 :Text;
  shape @1 :List(UInt64);  # empty: a scalar
  group @2 :UInt32;  # of hyper-parameters: 0 the job's [optimizer], k its k-th [[groups]]
  holders @3 :List(UInt32);  # model ranks, ascending; empty: all of them
}

# The layout (common/base/layout.h): it decides where every parameter lives. Also travels in control and attach messages.
struct Layout {
  tensors @0 :List(Tensor);
  chunkElements @1 :UInt64;  # fp32 elements per chunk
  # Owner of each chunk, by chunk index; two parallel lists because they pack to 4 bytes a chunk.
  ownerShards @2 :List(UInt16);
  ownerLanes @3 :List(UInt16);
}

# The server that owns this store, and what it has promised.
struct StoreIdentity {
  format @0 :UInt32;
  serverIndex @1 :UInt16;
  promised @2 :UInt64;  # terms of coordinators (docs/failover.md)
  owned @3 :UInt64;
}

# A job as the coordinator's registry keeps it (server/coordinator/cluster/job_record.h).
struct JobRecord {
  format @0 :UInt32;
  job @1 :UInt64;
  jobJson @2 :Text;  # canonical job configuration
  layout @3 :Layout;
  worldSize @4 :UInt32;
  view @5 :UInt32;  # highest view ever given out
  committed @6 :UInt64;  # round of the last committed consistent snapshot
  initialised @7 :Bool;  # a snapshot was ever committed
  finished @8 :Bool;
  members @9 :List(UInt32);  # node ranks of the last view, ascending; empty after a clean stop
  rankStates @10 :List(KeptRankState);  # the ranks' own states that belong to the committed snapshot
  # Hash of the last view's nodes, and the first view in a row with those nodes; 0: the first of all.
  membersHash @11 :UInt64;
  membersSince @12 :UInt32;
  lastStop @13 :Text;  # the reason of the last clean stop
  computedWith @14 :List(Text);  # what ranks computed the state's gradients with, each once
  membersFirst @15 :UInt64;  # the first round that they have made all chunks of
  edition @16 :UInt64;  # counts its saves: of two copies the higher one is newer
  provisional @17 :Bool;  # a view began with that round before it was committed: the snapshot before is still there
}

struct KeptRankState {
  node @0 :UInt32;
  localRank @1 :UInt32;
  state @2 :Data;
}

# Makes a snapshot valid: written with sync after all of its chunks are durable. A snapshot without it is a leftover of a crash.
struct SnapshotRecord {
  format @0 :UInt32;
  job @1 :UInt64;
  jobName @2 :Text;
  round @3 :UInt64;
  layoutHash @4 :UInt64;
  optimizer @5 :Text;
  generation @6 :UInt32;  # which column family of this job and round; a snapshot written again gets the next one
  bytes @7 :UInt64;  # of all chunks' values
  chunks @8 :List(UInt32);  # ascending indexes, so that a missing one can be named
  shard @9 :UInt16;  # whose part: of the store's own server, or of another one, which this is a copy of
}

# A round gate's decision about a round (common/math/gate_decision.h). Also travels in control messages.
struct GateDecision {
  verdict @0 :UInt8;  # GateVerdict; 0: none
  lossScale @1 :Float32;  # for the next round
  goodRounds @2 :UInt32;
  coefficient @3 :Float64;
  norm @4 :Float64;
}

# Precedes the arrays of a chunk (parameters, then the optimizer's slots; fp32, little endian, `elements` values each).
struct ChunkHeader {
  format @0 :UInt32;
  job @1 :UInt64;
  round @2 :UInt64;
  chunk @3 :UInt32;
  slots @4 :UInt8;  # state arrays after the parameters
  version @5 :UInt64;  # rounds seen; modes with clocks: pushes
  step @6 :UInt64;  # rounds applied
  elements @7 :UInt64;
  optimizer @8 :Text;
  checksum @9 :UInt64;  # XXH3-64 of all arrays, one after the other, in the order of their keys
  # Since format 2:
  estimate @10 :Bool;  # another array follows the slots: what all workers hold under a delta encoding
  nodes @11 :UInt16;  # nodes of the view
  residualNodes @12 :List(UInt16);  # whose residuals follow, an array each, ascending
  # Since format 3:
  clocks @13 :List(UInt64);  # modes with clocks: by node, its newest push that is in the arrays; empty otherwise
  # Since format 4:
  gate @14 :GateDecision;  # about the round that made this version, in a job with a gate
}

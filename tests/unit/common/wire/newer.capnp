# Schema of a newer program of the same protocol version: the root structs of control.capnp, data.capnp and attach.capnp
# with additional fields and one more kind.
@0xb5b9f0a7a3c1d1e5;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tributary::newer");

struct StopRequest {
  job @0 :UInt64;
  view @1 :UInt32;
  reason @2 :Text;
  within @3 :UInt32 = 7;
  details @4 :List(Text);
}

# As older programs have them.
struct OldJoinJob {
  jobJson @0 :Text;
}

struct OldLeaveJob {
  job @0 :UInt64;
  view @1 :UInt32;
  node @2 :UInt32;
}

struct ControlMessage {
  protocol @0 :UInt16;
  union {
    serverHello @1 :AnyPointer;
    workerHello @2 :AnyPointer;
    helloReply @3 :AnyPointer;
    heartbeat @4 :AnyPointer;
    heartbeatReply @5 :AnyPointer;
    joinJob @6 :AnyPointer;
    openJob @7 :AnyPointer;
    shardReady @8 :AnyPointer;
    jobWelcome @9 :AnyPointer;
    snapshotAt @10 :AnyPointer;
    snapshotDone @11 :AnyPointer;
    snapshotCommit @12 :AnyPointer;
    stopRequest @13 :StopRequest;
    leaveJob @14 :AnyPointer;
    stopJob @15 :AnyPointer;
    drainRequest @16 :AnyPointer;
    drainDone @17 :Void;
    error @18 :AnyPointer;
    peerAddress @19 :AnyPointer;
    shardKept @20 :AnyPointer;
    writeCheckpoint @21 :AnyPointer;
    sealCheckpoint @22 :AnyPointer;
    loadCheckpoint @23 :AnyPointer;
    dropCheckpoint @24 :AnyPointer;
    checkpointDone @25 :AnyPointer;
    roundFacts @26 :AnyPointer;
    roundDecision @27 :AnyPointer;
    nodeRankState @28 :AnyPointer;
    prepareSnapshot @29 :AnyPointer;
    jobWaits @30 :AnyPointer;
    traceRounds @31 :AnyPointer;
    tracePart @32 :AnyPointer;
    clusterQuestion @33 :Void;
    clusterFacts @34 :AnyPointer;
    diagnose @35 :AnyPointer;
    diagnosed @36 :AnyPointer;
    wantPart @37 :AnyPointer;
    statePart @38 :AnyPointer;
    rankValues @39 :AnyPointer;
    peerAddresses @40 :AnyPointer;
    jobRecordCopy @41 :AnyPointer;
    wantRecord @42 :AnyPointer;
    heldRecord @43 :AnyPointer;
    serverBook @44 :AnyPointer;
    copySnapshot @45 :AnyPointer;
    snapshotCopied @46 :AnyPointer;
    wantChunk @47 :AnyPointer;
    copiedChunk @48 :AnyPointer;
    copyParts @49 :AnyPointer;
    heldParts @50 :AnyPointer;
    seatReport @51 :AnyPointer;
    dealChunks @52 :AnyPointer;
    praise @53 :StopRequest;
  }
  sent @54 :UInt64;
}

struct AttachMessage {
  protocol @0 :UInt16;
  union {
    request @1 :AnyPointer;
    reply @2 :AnyPointer;
    initialValues @3 :Void;
    detach @4 :AnyPointer;
    detachReply @5 :Void;
    stopped @6 :AnyPointer;
    error @7 :AnyPointer;
    rankState @8 :AnyPointer;
    figures @9 :AnyPointer;
    waits @10 :AnyPointer;
    heldState @11 :AnyPointer;
    sharedValues @12 :AnyPointer;
    praise @13 :Text;
  }
}

enum Encoding {
  fp32 @0;
  bf16 @1;
  fp16 @2;
  int8 @3;
  topK @4;
  oneBit @5;
  int8Delta @6;
}

enum ResidualUse {
  none @0;
  behind @1;
  alone @2;
}

struct DataHeader {
  protocol @0 :UInt16;
  view @1 :UInt32;
  job @2 :UInt64;
  node @3 :UInt32;
  chunk @4 :UInt32;
  link @23 :UInt32;
  region @24 :UInt32;
  offset @25 :UInt64;
  bytes @26 :UInt64;
  ticket @37 :UInt64;
  gateVerdict @32 :UInt8;
  gateScale @33 :Float32;
  gateGood @34 :UInt32;
  gateCoefficient @35 :Float64;
  gateNorm @36 :Float64;
  union {
    push :group {
      round @5 :UInt64;
      weight @6 :UInt64;
      encoding @7 :Encoding;
      residual @18 :ResidualUse;
      last @30 :Bool;
      redo @27 :Bool;
      urgency @39 :UInt32 = 3;
    }
    init @8 :Void;
    pull :group {
      version @9 :UInt64;
    }
    query :group {
      round @10 :UInt64;
      redo @28 :Bool;
    }
    ack :group {
      round @11 :UInt64;
      residualKept @22 :Bool;
      applied @29 :Bool;
    }
    answer :group {
      version @12 :UInt64;
      encoding @13 :Encoding;
      snapshotRound @19 :UInt64;
      residualSent @20 :Bool;
      slowest @31 :UInt64;
    }
    resend :group {
      round @14 :UInt64;
    }
    residual :group {
      version @21 :UInt64;
    }
    error :group {
      round @15 :UInt64;
      code @16 :UInt16;
      message @17 :Text;
    }
    praise :group {
      words @40 :Text;
    }
  }
  sent @38 :UInt64;
}

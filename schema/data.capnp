# The data path: worker lane <-> server lane. A header is one frame; Push, Init, Answer and Residual are followed by a raw payload
# frame, unless the header has the payload's place in shared memory.
#
# Rules of all wires: in every version the root struct begins with the protocol version, so that any program recognises and reports
# a peer of any other. Numbers are append-only within a version; a change of meaning is a new version. A field's default is that of
# its member in common/*messages.h, and kinds stand in the order of the variant there.
@0x920227243f08daab;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("tributary::wire");

# Encodings with error feedback keep a residual on the node. Snapshots need the residual: servers store it with the chunk.
enum ResidualUse {
  none @0;
  behind @1;  # the payload is the frame, padding to a multiple of 64 bytes, and the residual after this round (fp32)
  alone @2;  # the payload is the residual alone: the node has left after this round. Answered with an ack
}

# Settings of a step of a group of tensors, as trainers give them. -1: the job's value (common/math/step_settings.h).
struct StepSettings {
  lr @0 :Float64 = -1;
  weightDecay @1 :Float64 = -1;
  momentum @2 :Float64 = -1;
}

# Flat on purpose (groups, not pointers): a header is one small struct that is built and read without allocation, unless
# trainers give settings of steps.
struct DataHeader {
  protocol @0 :UInt16;

  # The subject of the message. A push names (job, view, node, round, chunk): receiving it twice changes nothing.
  view @1 :UInt32;
  job @2 :UInt64;
  node @3 :UInt32;
  chunk @4 :UInt32;

  # Between lanes that share memory: where the payload lies, instead of the payload frame (PayloadPlace in common/wire/data_messages.h).
  link @23 :UInt32;  # 0: nothing is shared. Given without a payload, it requests the answer in shared memory
  region @24 :UInt32;
  offset @25 :UInt64;
  bytes @26 :UInt64;  # 0: no payload, or in a frame
  ticket @37 :UInt64;  # server -> worker: of this place, counted per link; worker -> server: the newest that it has read

  # In a job with a gate: the decision about the round that an answer's version is of, or that a push with redo repeats.
  gateVerdict @32 :UInt8;  # GateVerdict; 0: none
  gateScale @33 :Float32;  # for the next round
  gateGood @34 :UInt32;
  gateCoefficient @35 :Float64;
  gateNorm @36 :Float64;

  union {
    # worker -> server; + payload: node-summed gradient of the chunk for `round`.
    push :group {
      round @5 :UInt64;
      weight @6 :UInt64;  # samples behind the sum; the server divides by the total over nodes
      encoding @7 :UInt16;  # how the payload's values are written (EncodingId in common/base/ids.h)
      residual @18 :ResidualUse;
      last @30 :Bool;  # modes with clocks: the author's last push; its answer is to hold every node's up to this round
      redo @27 :Bool;  # of a round that this server lost: answered with an ack when it is applied again
      settings @38 :List(StepSettings);  # that the trainers give, of each group that the chunk holds, ascending; empty: the job's
    }
    # worker -> server; + payload: initial parameters, fp32. Answered with version 0.
    init @8 :Void;
    # worker -> server: the parameters at `version`, please (the view begins there); held until the chunk is there.
    pull :group {
      version @9 :UInt64;
      digestHigh @39 :UInt64;  # XXH3-128 of the fp32 values that the node has of the chunk; 0: it has none
      digestLow @40 :UInt64;
    }
    # worker -> server: what became of my push?
    query :group {
      round @10 :UInt64;
      redo @28 :Bool;  # of a push with redo
    }
    # server -> worker: the push has arrived and waits for the other nodes.
    ack :group {
      round @11 :UInt64;
      residualKept @22 :Bool;  # of a push with a residual alone; an earlier push of the round may have a late ack too
      applied @29 :Bool;  # of a push with redo: the round is complete, the next one may come
    }
    # server -> worker; + payload: parameters at `version`.
    answer :group {
      version @12 :UInt64;  # modes with clocks: the reader's own clock that is answered
      encoding @13 :UInt16;  # of a delta encoding the first answer of a view is fp32: the values themselves
      snapshotRound @19 :UInt64;  # the push of this round must bring its residual; 0: none is named
      residualSent @20 :Bool;  # the node's residual, of a resumed job, went before this answer
      slowest @31 :UInt64;  # modes with clocks: every node's pushes up to this round are in the parameters
      same @41 :Bool;  # to a pull whose digest is that of these parameters: there is no payload
    }
    # server -> worker: the push is not here; send it again.
    resend :group {
      round @14 :UInt64;
    }
    # server -> worker, before the first answer of a resumed chunk; + payload: this node's residual at `version`, fp32.
    residual :group {
      version @21 :UInt64;
    }
    # To the author of a message that could not be accepted.
    error :group {
      round @15 :UInt64;
      code @16 :UInt16;  # ErrorCode of common/base/result.h
      message @17 :Text;
    }
  }
}

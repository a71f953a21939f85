// The control messages of checkpoints, for codec_control.cc.
#pragma once

#include "common/codec_util.h"
#include "schema/control.capnp.h"

namespace tributary::codec {

void write(wire::ControlMessage::Builder out, const WriteCheckpoint& m);
void write(wire::ControlMessage::Builder out, const SealCheckpoint& m);
void write(wire::ControlMessage::Builder out, const LoadCheckpoint& m);
void write(wire::ControlMessage::Builder out, const DropCheckpoint& m);
void write(wire::ControlMessage::Builder out, const CheckpointDone& m);

// REQUIRES: it is one of these.
ControlMessage read_checkpoint(wire::ControlMessage::Reader root);

}  // namespace tributary::codec

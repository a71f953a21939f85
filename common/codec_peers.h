// What daemons say of themselves to the coordinator, and its replies, for codec_control.cc.
#pragma once

#include "common/codec_util.h"
#include "schema/control.capnp.h"

namespace tributary::codec {

void write(wire::ControlMessage::Builder out, const ServerHello& m);
void write(wire::ControlMessage::Builder out, const WorkerHello& m);
void write(wire::ControlMessage::Builder out, const HelloReply& m);
void write(wire::ControlMessage::Builder out, const Heartbeat& m);
void write(wire::ControlMessage::Builder out, const HeartbeatReply& m);

// REQUIRES: it is one of these.
ControlMessage read_peer(wire::ControlMessage::Reader root);

}  // namespace tributary::codec

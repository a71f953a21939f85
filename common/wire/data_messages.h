// The data path: worker lane <-> server lane (schema/data.capnp). Frames: a header, then the raw payload where noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/message_fields.h"
#include "common/math/encoding.h"
#include "common/math/gate_decision.h"
#include "common/math/step_settings.h"

namespace tributary {

// The subject of a data message. A push names (job, view, node, round, chunk): receiving it twice changes nothing.
// Outside the union in the schema, as a gate's decision is: codec.cc writes and reads both.
struct ChunkKey {
  JobId job;
  ViewId view;
  NodeRank node;
  ChunkIndex chunk;
  bool operator==(const ChunkKey&) const = default;

  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.node, TRIB_WIRE(Node));
    field(m.chunk, TRIB_WIRE(Chunk));
  }
};

// A push's part of its author's residual (encodings with error feedback; schema/data.capnp).
enum class ResidualUse : std::uint8_t { kNone = 0, kBehind = 1, kAlone = 2 };

constexpr KnownValues known_values(ResidualUse) {
  return {static_cast<std::uint16_t>(ResidualUse::kAlone), "the use of the residual"};
}
inline KnownValues known_values(EncodingId) {
  return {last_encoding(), "the encoding"};
}

// Returns where the residual begins in a payload that carries one behind its frame.
constexpr std::size_t residual_offset(std::size_t frame_bytes) {
  constexpr std::size_t kAlign = 64;
  return (frame_bytes + kAlign - 1) / kAlign * kAlign;
}

// Largest payload of a data message: a chunk's frame (at most 1.5 times its values: top-k of all of them), with its
// residual behind it.
inline constexpr std::size_t kMaxDataPayload = 3 * kMaxChunkBytes;

// Bytes of any data header except ErrorReply and a push with settings of steps, and of those, whose message is cut to
// fit; encode_data() asserts it.
inline constexpr std::size_t kMaxDataHeader = 192;
inline constexpr std::size_t kMaxErrorHeader = 4096;
static_assert(kMaxDataHeader + kMaxGroups * sizeof(StepSettings) <= kMaxErrorHeader);
inline constexpr std::size_t kMaxErrorText = kMaxErrorHeader - kMaxDataHeader - 16;

inline constexpr std::size_t kMaxMeasuredPayload = 256u << 10;  // of a measurement

// Node-summed gradient of one chunk for one round. + payload (encoded). Without a job (id 0) it is a measurement
// (docs/doctor.md), which the measured lane answers with an Answer without a job and the same payload.
struct Push {
  ChunkKey key;
  Round round;
  std::uint64_t weight = 0;  // samples (or any additive weight) behind the sum; the server divides by the total
  EncodingId encoding = EncodingId::kFp32;
  ResidualUse residual = ResidualUse::kNone;
  bool last = false;  // clocks: the author's last; its answer is to hold every node's pushes up to this round
  bool redo = false;  // of a round that this server lost: Ack::applied instead of an answer
  GateDecision gate;  // redo, in a job with a gate: the decision about that round
  // Settings of its groups' steps; none: as the job has them.
  HeldSettings settings;

  static constexpr auto kWire = TRIB_WIRE(Push);
  static void fields(auto& m, auto&& field) {
    field(m.round, TRIB_WIRE(Round));
    field(m.weight, TRIB_WIRE(Weight));
    field(m.encoding, TRIB_WIRE(Encoding));
    field(m.residual, TRIB_WIRE(Residual));
    field(m.last, TRIB_WIRE(Last));
    field(m.redo, TRIB_WIRE(Redo));
    field(m.settings, TRIB_WIRE(Settings), AtMost{kMaxGroups, "the settings of steps"});
  }
};
// Initial parameters of a chunk of a fresh job, from node 0. + payload (fp32). Answered with version 0.
struct Init {
  ChunkKey key;

  static constexpr auto kWire = TRIB_WIRE(Init);
};
// Requests the parameters of this chunk at `version`, where a view begins. Held until the chunk is initialised and at
// that version. A node that has values of the chunk sends their digest, whatever their origin: if they are the
// parameters, the answer has no payload.
struct Pull {
  ChunkKey key;
  Version version;
  Checksum128::Value digest{};  // of the fp32 values that the node has; 0: it has none

  static constexpr auto kWire = TRIB_WIRE(Pull);
  static void fields(auto& m, auto&& field) {
    field(m.version, TRIB_WIRE(Version));
    field(m.digest.high, TRIB_WIRE(DigestHigh));
    field(m.digest.low, TRIB_WIRE(DigestLow));
  }
};
// Asks for the state of a push, instead of sending it again, when an answer is overdue. Reply: Answer, Ack or
// Resend.
struct Query {
  ChunkKey key;
  Round round;
  bool redo = false;  // of a push with redo

  static constexpr auto kWire = TRIB_WIRE(Query);
  static void fields(auto& m, auto&& field) {
    field(m.round, TRIB_WIRE(Round));
    field(m.redo, TRIB_WIRE(Redo));
  }
};
// Acknowledges a push that has arrived and waits for the other nodes. Frees the sender's window, not its buffer.
struct Ack {
  ChunkKey key;
  Round round;
  bool residual_kept = false;  // of a residual alone; a late ack of the same round's gradient must not pass for it
  bool applied = false;        // of a push with redo: the round is complete, the next one may come

  static constexpr auto kWire = TRIB_WIRE(Ack);
  static void fields(auto& m, auto&& field) {
    field(m.round, TRIB_WIRE(Round));
    field(m.residual_kept, TRIB_WIRE(ResidualKept));
    field(m.applied, TRIB_WIRE(Applied));
  }
};
// The chunk's parameters at `version`. + payload (encoded). Where nodes have clocks (modes ssp and async) the version
// is the reader's own clock that is answered, and `slowest` the last round that all nodes' pushes are in.
struct Answer {
  ChunkKey key;
  Version version;
  EncodingId encoding = EncodingId::kFp32;
  Round snapshot_round;        // the push of this round must bring its residual; 0: none
  bool residual_sent = false;  // a Residual went before this answer
  Round slowest;               // clocks: every node's pushes up to this one are in the parameters; else the version
  GateDecision gate;           // in a job with a gate: about the round that made this version
  bool same = false;           // to a pull with this digest: the node has them, and there is no payload

  static constexpr auto kWire = TRIB_WIRE(Answer);
  static void fields(auto& m, auto&& field) {
    field(m.version, TRIB_WIRE(Version));
    field(m.encoding, TRIB_WIRE(Encoding));
    field(m.snapshot_round, TRIB_WIRE(SnapshotRound));
    field(m.residual_sent, TRIB_WIRE(ResidualSent));
    field(m.slowest, TRIB_WIRE(Slowest));
    field(m.same, TRIB_WIRE(Same));
  }
};
// The node's residual of a resumed chunk, before its first answer. + payload (fp32).
struct Residual {
  ChunkKey key;
  Version version;

  static constexpr auto kWire = TRIB_WIRE(Residual);
  static void fields(auto& m, auto&& field) { field(m.version, TRIB_WIRE(Version)); }
};
// The server does not have this push (it was lost, or the server came back): send it again.
struct Resend {
  ChunkKey key;
  Round round;

  static constexpr auto kWire = TRIB_WIRE(Resend);
  static void fields(auto& m, auto&& field) { field(m.round, TRIB_WIRE(Round)); }
};
// To the author of a message that could not be accepted.
struct ErrorReply {
  ChunkKey key;
  Round round;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  static constexpr auto kWire = TRIB_WIRE(Error);
  static void fields(auto& m, auto&& field) {
    field(m.round, TRIB_WIRE(Round));
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{kMaxErrorText, "the error's message"});
  }
};

// Place of a payload, instead of its frame, in a data message between two lanes on one machine that share memory
// (common/wire/local_link.h). bytes 0: the message has no payload, or has it in a frame.
struct PayloadPlace {
  std::uint32_t link = 0;    // the pair of lanes, by the server's number; 0: they share nothing
  std::uint32_t region = 0;  // of the sender's memories; a server has one: the buffers of the job
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  // From a server: the number of this place on its link, 1, 2, ... From a worker, in every message that names a link:
  // the newest place that it has read; it reads no older one any more.
  std::uint64_t ticket = 0;

  static void fields(auto& m, auto&& field) {
    field(m.link, TRIB_WIRE(Link));
    field(m.region, TRIB_WIRE(Region));
    field(m.offset, TRIB_WIRE(Offset));
    field(m.bytes, TRIB_WIRE(Bytes));
    field(m.ticket, TRIB_WIRE(Ticket));
  }
};

// In the order of the union in schema/data.capnp.
using DataMessage = std::variant<Push, Init, Pull, Query, Ack, Answer, Resend, ErrorReply, Residual>;

}  // namespace tributary

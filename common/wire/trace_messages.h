// A trace of a job's rounds (docs/trace.md): its events, and the messages that order and deliver them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"

namespace tributary {

inline constexpr std::uint64_t kMaxTraceRounds = 256;       // of one trace
inline constexpr std::size_t kMaxTraceEvents = 1u << 18;    // of one lane, or one trainer
inline constexpr std::size_t kMaxPartEvents = 4096;         // in one message
inline constexpr std::uint32_t kWorkerEventsPerChunk = 5;   // in a round: kReady to kArrived
inline constexpr std::uint32_t kWorkerEventsPerRound = 3;   // of a lane: kMeter...
inline constexpr std::uint32_t kTrainerEventsPerRound = 2;  // of a rank
inline constexpr std::uint32_t kServerEventsPerPush = 2;    // and one step for all of them

enum class TraceKind : std::uint8_t {
  // Worker lanes.
  kReady,         // all local ranks have the chunk's gradient
  kReduced,       // begin to end: summed and encoded
  kSent,          // the push
  kAcknowledged,  // an ack came
  kArrived,       // begin to end: from the answer to parameters that trainers see
  // The pace meter's totals after a round (status shows them): begin is 0, end the nanoseconds.
  kMeterCompute,
  kMeterReduce,
  kMeterNetwork,
  // Server lanes. peer: the node.
  kReceived,
  kStepped,  // begin to end; the last push is there at begin
  kAnswered,
  // Trainers.
  kComputed,  // begin to end: from the end of the round before to the last gradient
  kWaited,    // begin to end: until the last wait of the round
};
constexpr KnownValues known_values(TraceKind) {
  return {static_cast<std::uint16_t>(TraceKind::kWaited), "the kind of a trace's event"};
}

enum class TraceTrack : std::uint8_t { kServerLane, kWorkerLane, kTrainer };
constexpr KnownValues known_values(TraceTrack) {
  return {static_cast<std::uint16_t>(TraceTrack::kTrainer), "the kind of a trace's track"};
}

// Times are of the steady clock of the machine that records.
struct TraceEvent {
  std::uint64_t begin_ns = 0, end_ns = 0;  // the same where nothing takes time
  std::uint32_t chunk = 0;                 // as the whole layout numbers them
  std::uint32_t peer = 0;
  std::uint16_t round = 0;  // after the first one of the trace
  TraceKind kind = TraceKind::kReady;
  bool operator==(const TraceEvent&) const = default;

  static void fields(auto& m, auto&& field) {
    field(m.begin_ns, TRIB_WIRE(BeginNs));
    field(m.end_ns, TRIB_WIRE(EndNs));
    field(m.chunk, TRIB_WIRE(Chunk));
    field(m.peer, TRIB_WIRE(Peer));
    field(m.round, TRIB_WIRE(Round));
    field(m.kind, TRIB_WIRE(Kind));
  }
};
static_assert(sizeof(TraceEvent) == 32);

// Coordinator -> servers and workers of a view: record the rounds from first to last, and send them when they are over.
// last 0: send what there is now.
struct TraceRounds {
  JobId job;
  ViewId view;
  Round first, last;

  static constexpr auto kWire = TRIB_WIRE(TraceRounds);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.first, TRIB_WIRE(First));
    field(m.last, TRIB_WIRE(Last));
  }
};

// Server or worker -> coordinator: some of what one of its lanes, or a trainer of its node, recorded.
struct TracePart {
  JobId job;
  ViewId view;
  Round first;  // of the trace
  TraceTrack track = TraceTrack::kServerLane;
  std::uint16_t index = 0;  // of the lane; of a trainer its local rank
  std::vector<TraceEvent> events;
  std::uint64_t lost = 0;  // events of this track that had no room; reported once
  bool done = false;       // nothing more comes from this daemon

  static constexpr auto kWire = TRIB_WIRE(TracePart);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.view, TRIB_WIRE(View));
    field(m.first, TRIB_WIRE(First));
    field(m.track, TRIB_WIRE(Track));
    field(m.index, TRIB_WIRE(Index));
    field(m.events, TRIB_WIRE(Events), AtMost{kMaxPartEvents, "the events of a trace's part"});
    field(m.lost, TRIB_WIRE(Lost));
    field(m.done, TRIB_WIRE(Done));
  }
};

}  // namespace tributary

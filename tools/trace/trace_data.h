// A trace as the coordinator gives it away (docs/trace.md): what each lane and trainer recorded. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/trace_messages.h"

namespace tributary::trace {

// Each has a clock of its own; trainers have that of their node.
struct Daemon {
  bool server = false;
  std::uint32_t number = 0;  // of the server, or of the node in the view
  auto operator<=>(const Daemon&) const = default;
};
std::string in_words(const Daemon& daemon);  // "server 0", "node 3"

struct Track {
  Daemon daemon;
  TraceTrack kind = TraceTrack::kServerLane;
  std::uint16_t index = 0;  // of the lane, or the local rank
  std::vector<TraceEvent> events;
};

struct Data {
  std::string job;
  Round first, last;
  std::vector<Track> tracks;
  std::uint64_t lost = 0;
  std::string short_because;  // empty: every daemon has sent everything

  std::uint64_t rounds() const { return last.value - first.value + 1; }
};

// Parses the coordinator's status of the trace as a whole. kMalformed: it is none of ours.
Result<Data> data_of(const nlohmann::ordered_json& status);
// Adds a part of the trace to its track. kMalformed likewise.
Status add_piece(Data& data, const nlohmann::ordered_json& piece);

// Is the event a stretch of the track's time, and not a meter's total or another track's moment?
bool takes_place(TraceKind kind);

// Moves each track's events apart: no two overlap, and none is empty. Their order stays. Clocks are read to the
// nanosecond, so no event moves by much.
void set_apart(Data& data);

// The way of a chunk in a round, of a node: nanoseconds, and kMissing where nothing was recorded.
struct Chain {
  static constexpr std::int64_t kMissing = -1;

  std::uint32_t node = 0, chunk = 0;
  std::uint16_t round = 0;  // after the first
  std::uint16_t worker_lane = 0;
  std::uint32_t server = 0;
  std::uint16_t server_lane = 0;
  std::int64_t ready = kMissing, reduced_begin = kMissing, reduced_end = kMissing, sent = kMissing,
               acknowledged = kMissing, received = kMissing, step_begin = kMissing, step_end = kMissing,
               answered = kMissing, arrived_begin = kMissing, arrived_end = kMissing;

  bool whole() const;  // all but the acknowledgement, which an answer may replace
};
// Sorted by node, round and chunk.
std::vector<Chain> chains_of(const Data& data);

}  // namespace tributary::trace
